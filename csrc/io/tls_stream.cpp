// A stream that encrypts what it is given and hands on what it decrypts. OpenSSL sees two buffers in memory and never a
// socket; the inner stream knows nothing of TLS.
#include <algorithm>
#include <deque>
#include <optional>

#include "io/tls.h"

namespace moontide::io {
namespace {

constexpr size_t kCipherBytes = 64u << 10;    // of one read of the inner stream
constexpr size_t kHandshakeBytes = 4u << 10;  // the same from a peer that is still a stranger
constexpr size_t kEncryptBytes = 256u << 10;  // on the way at a time
constexpr size_t kBindingBytes = 32;
constexpr int kErrorWantRead = 2, kErrorZeroReturn = 6;  // SSL_ERROR_...
constexpr std::byte kHandshakeRecord{0x16};

class TlsStream final : public Stream, private StreamSink {
 public:
  TlsStream(Reactor& reactor, std::unique_ptr<Stream> inner, std::shared_ptr<TlsCredentials> credentials, TlsRole role,
            Bytes plain_answer)
      : reactor_(reactor),
        inner_(std::move(inner)),
        credentials_(std::move(credentials)),
        library_(credentials_->library()),
        role_(role),
        plain_answer_(std::move(plain_answer)),
        session_(credentials_->session(reactor.now_ns())) {
    MT_CHECK(session_ != nullptr, library_.take_errors());
    in_ = library_.BIO_new(library_.BIO_s_mem());
    out_ = library_.BIO_new(library_.BIO_s_mem());
    library_.SSL_set_bio(session_, in_, out_);  // the session's from here on
    if (role == TlsRole::kConnector) {
      library_.SSL_set_connect_state(session_);
    } else {
      library_.SSL_set_accept_state(session_);
    }
  }
  ~TlsStream() override {
    close();
    library_.SSL_free(session_);
  }

  void start(StreamSink& sink) override {
    if (!*alive_) return;
    sink_ = &sink;
    paused_ = false;
    if (!std::exchange(started_, true)) {
      inner_->start(*this);
      return post([this] { shake_hands(); });  // a connector speaks first
    }
    post([this] { read(); });
  }
  void resume() override {
    if (!*alive_) return;
    paused_ = false;
    post([this] { read(); });
  }

  void write(ByteView bytes) override {
    if (bytes.empty() || over_) return;
    Piece piece;
    piece.owned = to_bytes(bytes);
    piece.rest = piece.owned;
    add(std::move(piece));
  }
  void write_reference(ByteView bytes, Sent sent) override {
    if (over_) {
      return post([sent = std::move(sent), cause = cause_]() mutable { sent(std::unexpected(cause)); });
    }
    Piece piece;
    piece.rest = bytes;
    piece.sent = std::move(sent);
    add(std::move(piece));
  }
  Result<> write_with_fds(ByteView, const std::vector<int>&) override {
    return fail(Code::kUnsupported, "descriptors travel over local sockets only");
  }
  size_t pending() const override { return queued_ + (on_the_way_ ? outgoing_.size() : 0); }

  void close() override {
    *alive_ = false;
    over_ = true;
    sink_ = nullptr;
    inner_->close();
    queued_ = 0;
    // callbacks may own what owns this stream: they go when nothing here is touched any more
    auto queue = std::exchange(queue_, {});
  }

  std::string local_address() const override { return inner_->local_address(); }
  std::string peer_address() const override { return inner_->peer_address(); }
  Result<PeerCredentials> credentials() const override { return inner_->credentials(); }
  Bytes binding() const override {
    static constexpr std::string_view kLabel = "EXPORTER-moontide-challenge";
    Bytes material(kBindingBytes);
    if (!ready_ ||
        library_.SSL_export_keying_material(session_, reinterpret_cast<unsigned char*>(material.data()),
                                            material.size(), kLabel.data(), kLabel.size(), nullptr, 0, 0) != 1) {
      return {};
    }
    return material;
  }

 private:
  struct Piece {
    Bytes owned;
    ByteView rest;  // into `owned` or into the caller's memory
    Sent sent;
  };

  void post(Task task) {
    reactor_.post([alive = alive_, task = std::move(task)]() mutable {
      if (*alive) task();
    });
  }

  // --- from the inner stream ---

  MutableBytes want() override {
    if (over_) return {};
    if (paused_ && library_.BIO_ctrl_pending(in_) > 0) {
      inner_paused_ = true;
      return {};
    }
    cipher_.resize(ready_ ? kCipherBytes : kHandshakeBytes);
    return cipher_;
  }
  void arrived(size_t count) override {
    if (!heard_ && role_ == TlsRole::kAcceptor && cipher_[0] != kHandshakeRecord) {
      inner_->write(plain_answer_);
      return end({Code::kDenied, "TLS is required here, and the peer does not speak it"});
    }
    heard_ = true;
    library_.BIO_write(in_, cipher_.data(), static_cast<int>(count));
    ready_ ? read() : shake_hands();
  }
  void closed(Error cause) override {
    if (!ready_) cause.message += " during the TLS handshake (it may not speak TLS)";
    inner_over_ = std::move(cause);
    read();
  }

  // --- turns; each may end this stream ---

  void shake_hands() {
    if (ready_ || over_) return;
    library_.ERR_clear_error();  // of other users of the library in this thread
    const int returned = library_.SSL_do_handshake(session_);
    if (returned != 1 && library_.SSL_get_error(session_, returned) != kErrorWantRead) return failed("TLS handshake");
    ready_ = returned == 1;
    send();
    if (ready_) read();
  }

  void read() {
    const std::shared_ptr<bool> alive = alive_;
    while (ready_ && !over_ && sink_ != nullptr && !paused_) {
      const MutableBytes room = sink_->want();
      if (!*alive) return;
      if (room.empty()) {
        paused_ = true;
        break;
      }
      const int asked = static_cast<int>(std::min<size_t>(room.size(), 1u << 20));
      library_.ERR_clear_error();
      const int got = library_.SSL_read(session_, room.data(), asked);
      if (got > 0) {
        sink_->arrived(static_cast<size_t>(got));
        if (!*alive) return;
        continue;
      }
      const int error = library_.SSL_get_error(session_, got);
      if (error == kErrorZeroReturn) return end({Code::kPeerLost, "closed by the peer"});
      if (error != kErrorWantRead) return failed("TLS");
      break;
    }
    send();  // what reading may have asked for: alerts, new keys
    if (inner_over_ && (!paused_ || !ready_)) return end(*inner_over_);
    if (!paused_ && std::exchange(inner_paused_, false)) inner_->resume();
  }

  void failed(const char* where) {
    const long verified = library_.SSL_get_verify_result(session_);
    std::string why = library_.take_errors();
    if (verified != 0) why += std::string(": ") + library_.X509_verify_cert_error_string(verified);
    send();  // the alert that tells the peer
    end({Code::kDenied, std::string(where) + ": " + why});
  }

  void end(Error cause) {
    if (over_) return;
    const std::shared_ptr<bool> alive = alive_;
    over_ = true;
    cause_ = cause;
    queued_ = 0;
    for (Piece& piece : std::exchange(queue_, {})) {
      if (piece.sent) piece.sent(std::unexpected(cause));
      if (!*alive) return;
    }
    if (sink_ != nullptr) std::exchange(sink_, nullptr)->closed(std::move(cause));
  }

  // --- to the inner stream ---

  void add(Piece piece) {
    queued_ += piece.rest.size();
    queue_.push_back(std::move(piece));
    send();
  }

  // One buffer is on the way at a time; what is in it belongs to this stream, so callers have their memory back when
  // it is filled.
  void send() {
    if (sending_) return;
    const std::shared_ptr<bool> alive = alive_;
    sending_ = true;
    while (!on_the_way_ && *alive) {
      encrypt();
      const size_t size = library_.BIO_ctrl_pending(out_);
      if (size == 0) break;
      outgoing_.resize(size);
      library_.BIO_read(out_, outgoing_.data(), static_cast<int>(size));
      on_the_way_ = true;
      inner_->write_reference(outgoing_, [this, alive](Result<> outcome) {
        if (!*alive) return;
        on_the_way_ = false;
        if (outcome) send();
      });
    }
    if (*alive) sending_ = false;
  }

  void encrypt() {
    if (!ready_ || over_) return;
    size_t done = 0;
    while (!queue_.empty() && done < kEncryptBytes) {
      Piece& piece = queue_.front();
      if (!piece.rest.empty()) {
        const int count = static_cast<int>(std::min(piece.rest.size(), kEncryptBytes));
        library_.ERR_clear_error();
        const int put = library_.SSL_write(session_, piece.rest.data(), count);
        if (put <= 0) return post([this] { failed("TLS"); });
        piece.rest = piece.rest.subspan(static_cast<size_t>(put));
        queued_ -= static_cast<size_t>(put);
        done += static_cast<size_t>(put);
      }
      if (!piece.rest.empty()) continue;
      if (piece.sent) post([sent = std::move(piece.sent)]() mutable { sent({}); });
      queue_.pop_front();
    }
  }

  Reactor& reactor_;
  std::unique_ptr<Stream> inner_;
  std::shared_ptr<TlsCredentials> credentials_;
  const TlsLibrary& library_;
  const TlsRole role_;
  const Bytes plain_answer_;
  TlsLibrary::Session* session_;
  TlsLibrary::Pipe* in_ = nullptr;
  TlsLibrary::Pipe* out_ = nullptr;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

  StreamSink* sink_ = nullptr;
  bool started_ = false;
  bool heard_ = false;  // anything from the peer
  bool ready_ = false;  // the handshake is over
  bool paused_ = false;
  bool inner_paused_ = false;
  bool over_ = false;
  Error cause_;
  std::optional<Error> inner_over_;
  Bytes cipher_;

  std::deque<Piece> queue_;
  size_t queued_ = 0;
  Bytes outgoing_;
  bool on_the_way_ = false;
  bool sending_ = false;
};

}  // namespace

std::unique_ptr<Stream> make_tls_stream(Reactor& reactor, std::unique_ptr<Stream> inner,
                                        std::shared_ptr<TlsCredentials> credentials, TlsRole role, Bytes plain_answer) {
  return std::make_unique<TlsStream>(reactor, std::move(inner), std::move(credentials), role, std::move(plain_answer));
}

}  // namespace moontide::io
