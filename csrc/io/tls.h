// TLS 1.3 over any stream: both ends show a certificate of the same authority. The layers above see a stream.
//
// Thread: the reactor's. Credentials belong to one reactor.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "io/network.h"
#include "io/tls_library.h"

namespace moontide::io {

// PEM files. The certificate's file holds its chain, too.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// A certificate with its key and the authority that peers must have theirs from, kept as new as the files are: looked
// at when a connection begins, at most once a second. Files that do not load leave the earlier ones in use.
class TlsCredentials {
 public:
  // UNSUPPORTED: no OpenSSL here. INVALID: names the file and what is wrong with it.
  static Result<std::shared_ptr<TlsCredentials>> create(TlsFiles files);
  ~TlsCredentials();
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  const TlsLibrary& library() const { return *library_; }
  // A new session with what the files hold now; the caller's. Null: out of memory.
  TlsLibrary::Session* session(int64_t now_ns);
  uint64_t reloads() const { return reloads_; }
  uint64_t reloads_failed() const { return reloads_failed_; }

 private:
  using Stamp = std::array<int64_t, 4>;  // of a file: which, how long, changed when
  using Stamps = std::array<Stamp, 3>;
  TlsCredentials(std::shared_ptr<const TlsLibrary> library, TlsFiles files)
      : library_(std::move(library)), files_(std::move(files)) {}
  Stamps stamps() const;
  Result<TlsLibrary::Context*> load() const;

  std::shared_ptr<const TlsLibrary> library_;
  const TlsFiles files_;
  TlsLibrary::Context* context_ = nullptr;
  Stamps stamps_{};
  int64_t looked_ns_ = INT64_MIN;
  uint64_t reloads_ = 0, reloads_failed_ = 0;
};

enum class TlsRole : uint8_t { kConnector, kAcceptor };

// `plain_answer`: sent, as it is, to a connector that does not speak TLS. A peer that fails ends the stream with
// DENIED and the reason.
std::unique_ptr<Stream> make_tls_stream(Reactor& reactor, std::unique_ptr<Stream> inner,
                                        std::shared_ptr<TlsCredentials> credentials, TlsRole role, Bytes plain_answer);

}  // namespace moontide::io
