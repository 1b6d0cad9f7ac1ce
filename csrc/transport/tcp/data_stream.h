// One tcp data stream of an endpoint: parses frames, lands payload straight in regions and slices, serves the peer's
// reads. What to do with answers is the endpoint's business.
#pragma once

#include <memory>
#include <vector>

#include "io/network.h"
#include "transport/tcp/frame.h"
#include "transport/transport.h"

namespace moontide::transport::tcp {

class DataStream;

// What a stream asks of its endpoint.
class DataStreamOwner {
 public:
  virtual ~DataStreamOwner() = default;
  virtual memory::Registry& registry() = 0;
  // The slice a read answer belongs to, while somebody still wants it; asked again before each read of the socket.
  virtual Slice* reading(uint64_t tag) = 0;
  virtual void progressed(uint64_t tag, uint64_t bytes) = 0;
  // The socket has taken all of a write: nothing of this side refers to its memory any more.
  virtual void write_sent(uint64_t tag) = 0;
  // An answer to what was sent with `tag` as `op`; ignored where nothing such is waiting. May destroy the stream.
  virtual void answered(uint64_t tag, Op op, Code code) = 0;
  // The last call for this stream; it is destroyed inside.
  virtual void stream_closed(DataStream& stream, const Error& cause) = 0;
};

class DataStream final : private io::StreamSink, private memory::PinUser {
 public:
  DataStream(uint64_t id, std::unique_ptr<io::Stream> stream, DataStreamOwner& owner);
  void start() { stream_->start(*this); }

  uint64_t id() const { return id_; }
  void send_read(uint64_t tag, const Slice& slice);
  void send_write(uint64_t tag, const Slice& slice);

  uint64_t outstanding = 0;  // bytes of slices posted here and not answered; kept by the endpoint

 private:
  enum class Stage { kHeader, kPlaces, kPayload };
  struct Target {
    memory::RegionRef region;  // null: into the slice of the frame's tag
    std::byte* at = nullptr;
    uint64_t length = 0;
  };

  MutableBytes want() override;
  size_t want_more(std::span<MutableBytes> more) override;
  void arrived(size_t count) override;
  void closed(Error cause) override;

  // Each returns false once the stream is gone.
  bool header_complete();
  bool places_complete();
  void payload_complete();
  bool refuse(const Error& why);
  bool takes_answers() const;
  void serve_read();
  void aim_write();
  bool aim_read_answer();
  void next_frame();
  bool wanted(const Target& target) const;
  void payload_arrived(size_t count);
  std::string describe_use(const memory::Region& region) const override;
  // The kernel could not read all of them.
  void mark_missing(std::span<const ByteView> parts);
  void send_header(Kind kind, uint64_t tag, Code code, uint64_t length);

  uint64_t id_;
  std::unique_ptr<io::Stream> stream_;
  DataStreamOwner& owner_;

  Stage stage_ = Stage::kHeader;
  Header header_;
  std::vector<Place> places_;
  size_t filled_ = 0;  // of the header or the places
  Code code_ = Code::kOk;
  std::vector<Target> targets_;
  size_t target_ = 0;
  uint64_t target_filled_ = 0;
  uint64_t left_ = 0;  // payload bytes of the frame still to come
  bool into_scratch_ = false;
  Bytes scratch_;
  std::vector<ByteView> parts_;  // of the frame that is being sent
  uint64_t serving_ = 0;         // bytes of read answers that the socket has not taken
  uint64_t writing_ = 0;         // bytes of own writes likewise
  bool paused_ = false;
};

}  // namespace moontide::transport::tcp
