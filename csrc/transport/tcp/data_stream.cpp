#include "transport/tcp/data_stream.h"

#include <cstddef>

#include "memory/probe.h"

namespace moontide::transport::tcp {
namespace {

constexpr size_t kScratchBytes = 64u << 10;
constexpr size_t kServeBytesMax = 8u << 20;   // answers queued for a peer that asks faster than it takes
constexpr size_t kAnswerBytesMax = 4u << 20;  // of headers alone: a peer that does not read them is given up

template <class T>
MutableBytes raw(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Header make_header(Kind kind, uint64_t tag, Code code, uint64_t length) {
  Header header;
  header.kind = kind;
  header.tag = tag;
  header.code = static_cast<uint32_t>(code);
  header.length = length;
  return header;
}

// The kernel found nothing at the address.
bool is_fault(const Result<>& outcome) { return !outcome && outcome.error().code == Code::kInvalid; }

// A header with the places of a slice behind it.
struct Request {
  Header header;
  Place places[kPiecesMax];
  size_t count;

  Request(Kind kind, uint64_t tag, const Slice& slice)
      : header(make_header(kind, tag, Code::kOk, kind == Kind::kWrite ? slice.length : 0)), count(slice.pieces.size()) {
    header.count = static_cast<uint16_t>(count);
    for (size_t i = 0; i < count; ++i) {
      places[i] = {slice.remote->id, 0, slice.remote->generation, slice.pieces[i].offset, slice.pieces[i].length};
    }
  }
  ByteView bytes() const {
    return {reinterpret_cast<const std::byte*>(&header), sizeof header + count * sizeof(Place)};
  }
};
static_assert(offsetof(Request, places) == sizeof(Header));

}  // namespace

DataStream::DataStream(uint64_t id, std::unique_ptr<io::Stream> stream, DataStreamOwner& owner)
    : id_(id), stream_(std::move(stream)), owner_(owner) {}

// --- sending ---

void DataStream::send_header(Kind kind, uint64_t tag, Code code, uint64_t length) {
  Header header = make_header(kind, tag, code, length);
  stream_->write(raw(header));
}

bool DataStream::takes_answers() const { return stream_->pending() <= serving_ + writing_ + kAnswerBytesMax; }

void DataStream::send_read(uint64_t tag, const Slice& slice) {
  Request request(Kind::kRead, tag, slice);
  stream_->write(request.bytes());
}

void DataStream::send_write(uint64_t tag, const Slice& slice) {
  Request request(Kind::kWrite, tag, slice);
  parts_.clear();
  for (const Piece& piece : slice.pieces) parts_.emplace_back(piece.local, piece.length);
  // the slice's owner keeps the memory until the slice completes, and a slice completes only after this stream is done
  // with it or gone
  writing_ += slice.length;
  stream_->write_references(request.bytes(), parts_, [this, tag, parts = parts_, n = slice.length](Result<> outcome) {
    writing_ -= n;
    if (is_fault(outcome)) mark_missing(parts);
    if (!outcome) return;
    owner_.progressed(tag, n);
    owner_.write_sent(tag);  // may end the slice
  });
}

// --- receiving ---

MutableBytes DataStream::want() {
  if (stage_ == Stage::kHeader) {
    if (serving_ > kServeBytesMax) {
      paused_ = true;
      return {};
    }
    return raw(header_).subspan(filled_);
  }
  if (stage_ == Stage::kPlaces) return std::as_writable_bytes(std::span(places_)).subspan(filled_);
  if (!into_scratch_) {
    const Target& target = targets_[target_];
    // asked before every read: memory that was withdrawn since the last one gets no further byte
    if (wanted(target)) return {target.at + target_filled_, target.length - target_filled_};
    into_scratch_ = true;
    if (target.region) code_ = Code::kStale;
  }
  if (scratch_.empty()) scratch_.resize(kScratchBytes);
  return MutableBytes(scratch_).first(std::min<uint64_t>(left_, scratch_.size()));
}

bool DataStream::wanted(const Target& target) const {
  return target.region ? target.region->live : owner_.reading(header_.tag) != nullptr;
}

size_t DataStream::want_more(std::span<MutableBytes> more) {
  if (stage_ != Stage::kPayload || into_scratch_) return 0;
  size_t given = 0;
  for (size_t i = target_ + 1; i < targets_.size() && given < more.size() && wanted(targets_[i]); ++i) {
    more[given++] = {targets_[i].at, targets_[i].length};
  }
  return given;
}

void DataStream::payload_arrived(size_t count) {
  left_ -= count;
  if (!into_scratch_) {
    if (header_.kind == Kind::kReadData) owner_.progressed(header_.tag, count);
    for (target_filled_ += count; target_ < targets_.size() && target_filled_ >= targets_[target_].length; ++target_) {
      target_filled_ -= targets_[target_].length;
    }
  }
  if (left_ == 0) payload_complete();
}

void DataStream::arrived(size_t count) {
  switch (stage_) {
    case Stage::kHeader:
      filled_ += count;
      if (filled_ == sizeof header_) header_complete();
      return;
    case Stage::kPlaces:
      filled_ += count;
      if (filled_ == places_.size() * sizeof(Place)) places_complete();
      return;
    case Stage::kPayload:
      payload_arrived(count);
  }
}

bool DataStream::header_complete() {
  if (!takes_answers()) return refuse({Code::kOverloaded, "the peer does not read its answers"});
  if (auto checked = header_.check(); !checked) return refuse(checked.error());
  if (header_.count > 0) {
    stage_ = Stage::kPlaces;
    filled_ = 0;
    places_.resize(header_.count);
    return true;
  }
  if (header_.kind == Kind::kReadData && header_.code == 0) {
    if (!aim_read_answer()) return refuse({Code::kInvalid, "read answer of the wrong length"});
    stage_ = Stage::kPayload;
    if (left_ == 0) payload_complete();
    return true;
  }
  if (header_.length != 0) return refuse({Code::kInvalid, "payload with a refusal"});
  uint64_t tag = header_.tag;
  Code code = header_.code > static_cast<uint32_t>(Code::kInternal) ? Code::kInternal : static_cast<Code>(header_.code);
  Op op = header_.kind == Kind::kWriteDone ? Op::kWrite : Op::kRead;
  next_frame();
  owner_.answered(tag, op, code);
  return false;
}

bool DataStream::places_complete() {
  if (header_.kind == Kind::kRead) {
    serve_read();
    next_frame();
    return true;
  }
  uint64_t sum = 0;
  for (const Place& place : places_) {
    if (!range_inside(sum, place.length, kPayloadMax))
      return refuse({Code::kInvalid, "pieces of a data frame too long"});
    sum += place.length;
  }
  if (sum != header_.length) return refuse({Code::kInvalid, "pieces and payload of a data frame differ in length"});
  aim_write();
  stage_ = Stage::kPayload;
  if (left_ == 0) payload_complete();
  return true;
}

void DataStream::aim_write() {
  targets_.clear();
  target_ = 0, target_filled_ = 0;
  left_ = header_.length;
  code_ = Code::kOk;
  for (const Place& place : places_) {
    auto region =
        owner_.registry().check_remote(place.region, place.generation, place.offset, place.length, memory::kWritable);
    if (!region) {  // all or nothing: the payload of a frame with a bad place goes nowhere
      code_ = region.error().code;
      into_scratch_ = true;
      return;
    }
    if (place.length > 0) targets_.push_back({*region, (*region)->address + place.offset, place.length});
  }
  into_scratch_ = false;
}

bool DataStream::aim_read_answer() {
  targets_.clear();
  target_ = 0, target_filled_ = 0;
  left_ = header_.length;
  Slice* slice = owner_.reading(header_.tag);
  into_scratch_ = slice == nullptr;  // canceled meanwhile: drain it
  if (slice == nullptr) return true;
  if (slice->length != header_.length) return false;
  for (const Piece& piece : slice->pieces) {
    if (piece.length > 0) targets_.push_back({nullptr, piece.local, piece.length});
  }
  return true;
}

void DataStream::payload_complete() {
  Kind kind = header_.kind;
  uint64_t tag = header_.tag;
  Code code = code_;
  targets_.clear();
  next_frame();
  if (kind == Kind::kWrite) {
    send_header(Kind::kWriteDone, tag, code, 0);
  } else {
    owner_.answered(tag, Op::kRead, Code::kOk);
  }
}

void DataStream::serve_read() {
  std::vector<memory::Pin> pins;
  uint64_t length = 0;
  parts_.clear();
  for (const Place& place : places_) {
    auto region =
        owner_.registry().check_remote(place.region, place.generation, place.offset, place.length, memory::kReadable);
    if (!region || !range_inside(length, place.length, kPayloadMax)) {
      send_header(Kind::kReadData, header_.tag, region ? Code::kTooLarge : region.error().code, 0);
      return;
    }
    parts_.emplace_back((*region)->address + place.offset, place.length);
    if (pins.empty() || pins.back().region() != *region)
      pins.emplace_back(std::move(*region), static_cast<const memory::PinUser*>(this));
    length += place.length;
  }
  Header header = make_header(Kind::kReadData, header_.tag, Code::kOk, length);
  serving_ += length;
  // the pins keep the regions' memory until the kernel has its copy, or until this stream is destroyed
  auto sent = [this, length, parts = parts_, pins = std::move(pins)](Result<> outcome) mutable {
    if (is_fault(outcome)) mark_missing(parts);
    pins.clear();
    serving_ -= length;
    if (outcome && paused_ && serving_ <= kServeBytesMax / 2) {
      paused_ = false;
      stream_->resume();
    }
  };
  stream_->write_references(raw(header), parts_, std::move(sent));
}

void DataStream::mark_missing(std::span<const ByteView> parts) {
  for (const ByteView& part : parts) {
    if (const std::byte* at = memory::first_missing(part)) {
      owner_.registry().mark_missing(reinterpret_cast<uint64_t>(at));
    }
  }
}

std::string DataStream::describe_use(const memory::Region&) const {
  return "data stream " + std::to_string(id_) + " from " + stream_->peer_address() +
         ", which sends what its peer reads, " + std::to_string(serving_) + " bytes not taken by the socket";
}

void DataStream::next_frame() {
  stage_ = Stage::kHeader;
  filled_ = 0;
  code_ = Code::kOk;
}

bool DataStream::refuse(const Error& why) {
  owner_.stream_closed(*this, why);
  return false;
}

void DataStream::closed(Error cause) { owner_.stream_closed(*this, cause); }

}  // namespace moontide::transport::tcp
