// Two TLS streams, one of each role, and somebody between them who hands on what they write in pieces of any size, or
// changes, replaces, drops and ends it, before the handshake, during it and after it: what arrives at the one end is
// the beginning of what was written at the other, all of it where nobody meddled, and memory that was written from is
// used until it is handed back and no longer. The certificates are made by the openssl command.
#include <unistd.h>

#include <filesystem>
#include <map>

#include "fuzz/wire_stream.h"
#include "io/sim.h"
#include "io/tls.h"

namespace moontide::fuzz {
namespace {

constexpr size_t kClient = 0, kServer = 1;
constexpr size_t kWrittenMax = 64u << 10;

// Certificates of one authority for both ends, loaded once.
std::shared_ptr<io::TlsCredentials> credentials() {
  static const std::shared_ptr<io::TlsCredentials> loaded = [] {
    const auto folder = std::filesystem::temp_directory_path() / ("moontide-fuzz-tls-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder);
    const std::string command = "cd " + folder.string() +
                                " && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 9 "
                                "-subj /CN=ca -keyout key -out pem >log 2>&1";
    require(std::system(command.c_str()) == 0, "the openssl command makes a certificate");
    const std::string certificate = (folder / "pem").string();
    auto made = io::TlsCredentials::create({certificate, (folder / "key").string(), certificate});
    require(made.has_value(), "there is a TLS library");
    std::filesystem::remove_all(folder);  // what was loaded stays in use
    return *made;
  }();
  return loaded;
}

class Sink final : public io::StreamSink {
 public:
  explicit Sink(const Bytes& expected) : expected_(expected) {}
  MutableBytes want() override {
    require(!over_, "nothing is called after the end");
    if (paused) return {};
    buffer_.assign(room, std::byte{0});
    return buffer_;
  }
  void arrived(size_t count) override {
    require(count > 0 && count <= buffer_.size() && count_ + count <= expected_.size(), "no more comes than was sent");
    const auto from = expected_.begin() + static_cast<ptrdiff_t>(count_);
    require(std::equal(from, from + static_cast<ptrdiff_t>(count), buffer_.begin()), "bytes arrive as they were sent");
    count_ += count;
  }
  void closed(Error) override { require(!std::exchange(over_, true), "closed once"); }
  size_t count() const { return count_; }

  size_t room = 100;
  bool paused = false;

 private:
  const Bytes& expected_;
  Bytes buffer_;
  size_t count_ = 0;
  bool over_ = false;
};

class Scene {
 public:
  Scene() {
    for (size_t end : {kClient, kServer}) {
      const auto role = end == kClient ? io::TlsRole::kConnector : io::TlsRole::kAcceptor;
      streams_[end] = io::make_tls_stream(process_, std::make_unique<WireStream>(wires_[end]), credentials(), role,
                                          to_bytes(as_bytes("no")));
      streams_[end]->start(sinks_[end]);
    }
    run();
  }
  ~Scene() {
    if (!meddled_) {
      for (size_t end : {kClient, kServer}) resume(end);
      for (int i = 0; i < 100; ++i) pump();
      for (size_t end : {kClient, kServer}) {
        require(sinks_[end].count() == written_[1 - end].size(), "all arrives where nobody meddles");
        require(streams_[end]->pending() == 0, "nothing is left to send");
      }
      require(references_.empty(), "memory is handed back");
    }
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    const size_t end = op / 16u % 2;
    switch (op % 16) {
      case 0:
      case 1:
        return hand_on(end, 1 + input.u16());
      case 2: {
        Bytes bytes = wires_[1 - end]->take_write();
        if (bytes.empty()) return;
        meddled_ = true;
        bytes[input.u16() % bytes.size()] ^= std::byte{static_cast<uint8_t>(1 + input.u8() % 255)};
        return feed(end, bytes, 1 + input.u16());
      }
      case 3:
        meddled_ = true;
        return feed(end, input.bytes(input.u16() % 2048), 1 + input.u16());
      case 4:
        meddled_ = true;
        return (void)wires_[end]->take_write();
      case 5:
        return write(end, to_bytes(input.bytes(input.u8())), op >= 128);
      case 6:
        return write(end, Bytes(input.u16(), std::byte{op}), op >= 128);
      case 7:
        sinks_[end].paused = true;
        return;
      case 8:
        return resume(end);
      case 9:
        sinks_[end].room = 1 + input.u16() % 20000;
        return;
      case 10:
        if (op < 128) return;
        meddled_ = true;
        wires_[end]->end();
        return run();
      case 11:
        if (op < 128) return;
        meddled_ = true;
        return streams_[end]->close();
      case 12:
        if (streams_[kClient]->binding().empty() || streams_[kServer]->binding().empty()) return;
        return require(streams_[kClient]->binding() == streams_[kServer]->binding(), "both ends know the same secret");
      default:
        return pump();
    }
  }

 private:
  void run() { world_.run_for(kMillisecond); }
  void feed(size_t end, ByteView bytes, size_t piece) {
    Wire& wire = *wires_[end];
    wire.coming.insert(wire.coming.end(), bytes.begin(), bytes.end());
    wire.deliver(piece);
    run();
  }
  void hand_on(size_t to, size_t piece) { feed(to, wires_[1 - to]->take_write(), piece); }
  void pump() {
    for (size_t end : {kClient, kServer}) hand_on(end, SIZE_MAX / 2);
  }
  void resume(size_t end) {
    sinks_[end].paused = false;
    streams_[end]->resume();
    run();
  }
  void write(size_t end, Bytes bytes, bool reference) {
    if (bytes.empty() || written_[end].size() + bytes.size() > kWrittenMax) return;
    written_[end].insert(written_[end].end(), bytes.begin(), bytes.end());
    if (!reference) return streams_[end]->write(bytes);
    const uint64_t number = next_++;
    const Bytes& kept = references_[number] = std::move(bytes);
    streams_[end]->write_reference(
        kept, [this, number](Result<>) { require(references_.erase(number) == 1, "memory is handed back once"); });
    run();
  }

  io::SimWorld world_{1};
  io::SimProcess& process_ = world_.start_process("one");
  std::map<uint64_t, Bytes> references_;
  uint64_t next_ = 1;
  Bytes written_[2];
  Sink sinks_[2] = {Sink(written_[kServer]), Sink(written_[kClient])};
  std::shared_ptr<Wire> wires_[2] = {std::make_shared<Wire>(), std::make_shared<Wire>()};
  std::unique_ptr<io::Stream> streams_[2];
  bool meddled_ = false;
};

}  // namespace

std::vector<Bytes> seeds() {
  // the handshake, then bytes both ways; a byte of the handshake and of a later record is another one
  const Bytes handshake = Output().u8(16).u16(4000).u8(0).u16(70).u8(0).u16(4000).u8(16).u16(4000).take();
  std::vector<Bytes> all;
  Output both;
  both.bytes(handshake).u8(5).u8(3).bytes(Bytes(3)).u8(128 + 16 + 6).u16(30000).u8(7).u8(13).u8(13).u8(8).u8(13).u8(12);
  all.push_back(both.take());
  for (size_t cut : {size_t{0}, size_t{3}, size_t{6}, handshake.size()}) {
    Output out;
    out.bytes(ByteView(handshake).first(cut)).u8(5).u8(3).bytes(Bytes(3)).u8(16 + 2).u16(9).u8(4).u16(4000);
    all.push_back(out.u8(2).u16(9).u8(4).u16(4000).u8(13).take());
  }
  // strangers: no TLS at all, the beginnings of records, an alert
  for (size_t end : {kClient, kServer}) {
    for (uint8_t kind : {0x47, 0x14, 0x15, 0x16, 0x17}) {
      Output out;
      out.u8(static_cast<uint8_t>(end * 16 + 3)).u16(9).u16(4);
      all.push_back(out.u8(kind).u8(3).u8(3).u8(0).u8(4).u8(2).u8(0).u8(0).u8(0).u8(13).take());
    }
  }
  all.push_back(Output().bytes(handshake).u8(128 + 10).u8(128 + 16 + 11).u8(13).take());
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 100 && !input.empty(); ++steps) scene.step(input);
  return 0;
}
