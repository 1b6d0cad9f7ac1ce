// A tcp data stream that is fed any bytes in any pieces, while regions come and go and slices are waiting: bytes land
// in writable regions and wanted slices only, what is served comes from readable regions only, and no registered memory
// is touched once it was handed back.
#include <algorithm>
#include <map>

#include "fuzz/wire_stream.h"
#include "transport/tcp/data_stream.h"

namespace moontide::fuzz {
namespace {

using transport::Op;
using transport::Slice;
using transport::tcp::DataStream;
using transport::tcp::Header;
using transport::tcp::Kind;
using transport::tcp::Place;

constexpr size_t kSize = 512;
constexpr std::byte kSecret{0x5a};

std::unique_ptr<memory::Registry> make_registry() {
  auto generations = memory::GenerationTable::create_private();
  return std::make_unique<memory::Registry>(std::move(*generations));
}

class Scene final : public transport::tcp::DataStreamOwner, public transport::SliceOwner {
 public:
  Scene() : registry_(make_registry()), wire_(std::make_shared<Wire>()) {
    const uint8_t rights[] = {memory::kReadable | memory::kWritable, memory::kReadable, memory::kLocal,
                              memory::kWritable};
    for (uint8_t access : rights) {
      memory_.emplace_back(kSize, (access & memory::kReadable) != 0 ? std::byte{1} : kSecret);
      regions_.push_back(*registry_->add(memory_.back().data(), kSize, access, ""));
    }
    stream_ = std::make_unique<DataStream>(1, std::make_unique<WireStream>(wire_), *this);
    stream_->start();
  }
  ~Scene() override {
    stream_.reset();
    registry_->close();
    for (const auto& region : regions_) require(region->pins == 0, "a stream that is gone pins nothing");
    for (size_t i : {1, 2}) {
      const std::byte before = i == 1 ? std::byte{1} : kSecret;
      require(memory_[i].empty() || std::ranges::all_of(memory_[i], [&](std::byte b) { return b == before; }),
              "only writable memory is written");
    }
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    switch (op % 8) {
      case 0:
        return feed(input.bytes(input.u16() % 2048), 1 + input.u8());
      case 1:
      case 2:
        return frame(input);
      case 3:
        return post(Op::kRead, input.u8());
      case 4:
        return post(Op::kWrite, input.u8());
      case 5:
        return take();
      case 6:
        return op % 16 == 6 ? remove(input.u8() % regions_.size()) : cancel();
      default:
        if (op % 64 == 7) wire_->end();
    }
  }

 private:
  struct Posted {
    std::vector<transport::Piece> pieces;
    Slice slice;
    Bytes memory;
  };

  void feed(ByteView bytes, size_t piece) {
    if (!stream_) return;
    wire_->coming.insert(wire_->coming.end(), bytes.begin(), bytes.end());
    wire_->deliver(piece);
    if (wire_->coming.size() > (256u << 10)) wire_->end();
  }
  // A frame that passes the first checks, mostly.
  void frame(Input& input) {
    Header header;
    header.kind = static_cast<Kind>(1 + input.u8() % 4);
    header.tag = input.u8();
    header.code = input.u8() % 4 == 1 ? input.u8() : 0;
    const bool request = header.kind == Kind::kWrite || header.kind == Kind::kRead;
    header.count = request ? input.u8() % 6 : 0;
    Output out;
    uint64_t sum = 0;
    std::vector<Place> places(header.count);
    for (Place& place : places) {
      const size_t index = input.u8() % 8;
      place.region = index < regions_.size() ? regions_[index]->id : input.u8();
      place.generation = index < regions_.size() ? regions_[index]->generation : input.u8();
      place.offset = input.u16() % (kSize + 8);
      place.length = input.u16() % (kSize + 8);
      sum += place.length;
    }
    if (header.kind == Kind::kWrite) header.length = sum;
    if (header.kind == Kind::kReadData && header.code == 0) header.length = input.u16() % 1024;
    out.add(header);
    for (const Place& place : places) out.add(place);
    Bytes bytes = out.take();
    bytes.resize(bytes.size() + std::min<uint64_t>(header.length, 4096), std::byte{9});
    feed(bytes, 1 + input.u16());
  }
  void post(Op op, uint8_t shape) {
    if (!stream_ || posted_.size() > 16) return;
    auto posted = std::make_unique<Posted>();
    posted->memory.resize(1 + shape * 4);
    auto remote = std::make_shared<transport::RemoteRegion>();
    posted->slice.op = op;
    posted->slice.remote = remote;
    posted->slice.owner = this;
    posted->slice.length = posted->memory.size();
    const size_t half = posted->memory.size() / 2;
    if (half > 0) posted->pieces.push_back({posted->memory.data(), 7, half});
    posted->pieces.push_back({posted->memory.data() + half, 100, posted->memory.size() - half});
    posted->slice.pieces = posted->pieces;
    const uint64_t tag = next_tag_++;
    Slice& slice = posted->slice;
    posted_.emplace(tag, std::move(posted));
    if (op == Op::kRead) {
      stream_->send_read(tag, slice);
    } else {
      stream_->send_write(tag, slice);
    }
  }
  void take() {
    Bytes out = wire_->take_write();
    Header header;
    if (out.size() < sizeof header) return;
    std::memcpy(&header, out.data(), sizeof header);
    if (header.kind != Kind::kReadData) return;
    for (size_t i = sizeof header; i < out.size(); ++i) require(out[i] != kSecret, "only readable memory is served");
  }
  // The owner of a region gets its memory back when nothing uses it any more, and frees it.
  void remove(size_t index) {
    auto gone = registry_->remove(regions_[index]->id, [this, index] { Bytes().swap(memory_[index]); });
    require(gone.has_value() || gone.error().code == Code::kNotFound, "a region is removed once");
  }
  // A read that nobody wants any more is quiet at once.
  void cancel() {
    for (auto at = posted_.begin(); at != posted_.end(); ++at) {
      if (at->second->slice.op == Op::kRead) return posted_.erase(at), void();
    }
  }

  // DataStreamOwner
  memory::Registry& registry() override { return *registry_; }
  Slice* reading(uint64_t tag) override {
    auto found = posted_.find(tag);
    return found != posted_.end() && found->second->slice.op == Op::kRead ? &found->second->slice : nullptr;
  }
  void progressed(uint64_t, uint64_t) override {}
  void write_sent(uint64_t tag) override { sent_[tag] = true; }
  void answered(uint64_t tag, Op op, Code) override {
    auto found = posted_.find(tag);
    if (found == posted_.end() || found->second->slice.op != op) return;
    if (op == Op::kRead || sent_[tag]) posted_.erase(found);
  }
  void stream_closed(DataStream& stream, const Error&) override {
    require(stream_.get() == &stream, "closed once");
    stream_.reset();
    posted_.clear();
  }
  // SliceOwner
  void progressed(Slice&, uint64_t) override {}
  void completed(Slice&, Result<>) override { require(false, "a data stream completes no slice by itself"); }

  std::unique_ptr<memory::Registry> registry_;
  std::shared_ptr<Wire> wire_;
  std::deque<Bytes> memory_;
  std::vector<memory::RegionRef> regions_;
  std::map<uint64_t, std::unique_ptr<Posted>> posted_;
  std::map<uint64_t, bool> sent_;
  uint64_t next_tag_ = 1;
  std::unique_ptr<DataStream> stream_;
};

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint8_t kind = 0; kind < 4; ++kind) {
    Output out;
    out.u8(3).u8(20).u8(4).u8(20);
    out.u8(1).u8(kind).u8(1).u8(0);
    if (kind % 2 == 0) out.u8(2).u8(0).u16(3).u16(100).u8(3).u16(0).u16(50);
    if (kind == 3) out.u16(81);
    all.push_back(out.u16(64).u8(5).u8(6).u8(0).u8(5).take());
  }
  Header header;
  header.kind = Kind::kRead;
  header.count = 1;
  all.push_back(Output().u8(0).u16(64).add(header).add(Place{1, 0, 1, 0, 64}).u8(9).u8(5).take());
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) scene.step(input);
  return 0;
}
