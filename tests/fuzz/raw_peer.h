// A connection of somebody who says what he likes: frames with a right header and any payload, or no frames at all. It
// keeps what comes back, so that the target may quote tokens and terms.
#pragma once

#include <memory>
#include <optional>

#include "fuzz/fuzz.h"
#include "io/sim_network.h"
#include "wire/codec.h"
#include "wire/frame.h"

namespace moontide::fuzz {

class RawPeer final : io::StreamSink {
 public:
  RawPeer(io::Network& network, const std::string& address) : open_(std::make_shared<bool>(true)) {
    network.connect(address, kSecond, [this, open = std::weak_ptr(open_)](auto stream) {
      if (open.expired() || !stream) return;
      stream_ = std::move(*stream);
      stream_->start(*this);
      stream_->write(std::exchange(early_, {}));
    });
  }

  void send(ByteView bytes) {
    if (stream_) {
      if (!over_) stream_->write(bytes);
    } else if (!over_ && early_.size() < (64u << 10)) {
      early_.insert(early_.end(), bytes.begin(), bytes.end());
    }
  }
  void frame(wire::FrameKind kind, uint16_t type, uint64_t id, ByteView payload) {
    wire::FrameHeader header;
    header.kind = kind;
    header.type = type;
    header.id = id;
    header.length = static_cast<uint32_t>(payload.size());
    send(Output().add(header).bytes(payload).take());
  }
  template <wire::Message T>
  void request(uint16_t type, const T& message) {
    frame(wire::FrameKind::kRequest, type, next_id_++, wire::encode(message));
  }

  // It was hung up on, or never got through.
  bool over() const { return over_ || !stream_; }

  // The last answer that decodes as T and is long enough to be one.
  template <wire::Message T>
  std::optional<T> answer() const {
    if (auto message = wire::decode_prefix<T>(last_reply_); message && !last_reply_.empty()) return *message;
    return std::nullopt;
  }

 private:
  MutableBytes want() override { return buffer_; }
  void arrived(size_t count) override {
    received_.insert(received_.end(), buffer_, buffer_ + count);
    wire::FrameHeader header;
    while (received_.size() >= sizeof header) {
      std::memcpy(&header, received_.data(), sizeof header);
      if (!header.check()) return received_.clear();  // a data stream
      const size_t size = sizeof header + header.length;
      if (received_.size() < size) return;
      const auto begin = received_.begin();
      if (header.kind == wire::FrameKind::kReply && header.type == 0) {
        last_reply_.assign(begin + sizeof header, begin + static_cast<ptrdiff_t>(size));
      }
      received_.erase(begin, begin + static_cast<ptrdiff_t>(size));
    }
  }
  void closed(Error) override { over_ = true; }

  std::shared_ptr<bool> open_;
  Bytes early_;
  std::byte buffer_[2048];
  Bytes received_;
  Bytes last_reply_;
  uint64_t next_id_ = 1;
  bool over_ = false;
  std::unique_ptr<io::Stream> stream_;
};

}  // namespace moontide::fuzz
