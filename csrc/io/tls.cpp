#include "io/tls.h"

#include <sys/stat.h>

namespace moontide::io {
namespace {

constexpr int64_t kLookEveryNs = kSecond;

// Values of OpenSSL's headers.
constexpr int kControlMode = 33, kControlSessionCache = 44, kControlMinVersion = 123;
constexpr long kModePartialWrite = 1, kModeMovingBuffer = 2, kModeReleaseBuffers = 0x10;
constexpr long kTls13 = 0x0304, kSessionCacheOff = 0;
constexpr int kFilePem = 1;
constexpr int kVerifyPeer = 1, kVerifyFailWithout = 2;

// A key with a password would have OpenSSL ask for it on the terminal.
int no_password(char*, int, int, void*) { return -1; }

}  // namespace

Result<std::shared_ptr<TlsCredentials>> TlsCredentials::create(TlsFiles files) {
  TRY(auto library, TlsLibrary::load());
  std::shared_ptr<TlsCredentials> credentials(new TlsCredentials(std::move(library), std::move(files)));
  credentials->stamps_ = credentials->stamps();
  TRY(credentials->context_, credentials->load());
  return credentials;
}

TlsCredentials::~TlsCredentials() {
  if (context_ != nullptr) library_->SSL_CTX_free(context_);
}

TlsCredentials::Stamps TlsCredentials::stamps() const {
  Stamps stamps{};
  const std::string* paths[] = {&files_.certificate, &files_.key, &files_.authority};
  for (size_t i = 0; i < stamps.size(); ++i) {
    struct stat state{};
    if (stat(paths[i]->c_str(), &state) != 0) continue;
    stamps[i] = {static_cast<int64_t>(state.st_ino), static_cast<int64_t>(state.st_size), state.st_mtim.tv_sec,
                 state.st_mtim.tv_nsec};
  }
  return stamps;
}

Result<TlsLibrary::Context*> TlsCredentials::load() const {
  const TlsLibrary& l = *library_;
  (void)l.take_errors();
  TlsLibrary::Context* context = l.SSL_CTX_new(l.TLS_method());
  if (context == nullptr) return fail(Code::kUnsupported, "TLS cannot be set up: " + l.take_errors());
  l.SSL_CTX_set_default_passwd_cb(context, &no_password);
  l.SSL_CTX_ctrl(context, kControlMinVersion, kTls13, nullptr);
  l.SSL_CTX_ctrl(context, kControlMode, kModePartialWrite | kModeMovingBuffer | kModeReleaseBuffers, nullptr);
  // every connection shows its certificate: a resumed session would outlive the files it began with
  l.SSL_CTX_ctrl(context, kControlSessionCache, kSessionCacheOff, nullptr);
  l.SSL_CTX_set_num_tickets(context, 0);
  l.SSL_CTX_set_verify(context, kVerifyPeer | kVerifyFailWithout, nullptr);
  std::string wrong;
  if (l.SSL_CTX_use_certificate_chain_file(context, files_.certificate.c_str()) != 1) {
    wrong = "tls_cert = '" + files_.certificate + "'";
  } else if (l.SSL_CTX_use_PrivateKey_file(context, files_.key.c_str(), kFilePem) != 1 ||
             l.SSL_CTX_check_private_key(context) != 1) {
    wrong = "tls_key = '" + files_.key + "'";
  } else if (l.SSL_CTX_load_verify_file(context, files_.authority.c_str()) != 1) {
    wrong = "tls_ca = '" + files_.authority + "'";
  } else {
    return context;
  }
  std::string why = l.take_errors();
  l.SSL_CTX_free(context);
  return fail(Code::kInvalid, wrong + ": " + why);
}

TlsLibrary::Session* TlsCredentials::session(int64_t now_ns) {
  if (looked_ns_ == INT64_MIN || now_ns - looked_ns_ >= kLookEveryNs) {
    looked_ns_ = now_ns;
    const Stamps now = stamps();
    if (now != stamps_) {
      stamps_ = now;
      if (auto fresh = load()) {
        library_->SSL_CTX_free(std::exchange(context_, *fresh));
        ++reloads_;
      } else {
        ++reloads_failed_;
      }
    }
  }
  return library_->SSL_new(context_);
}

}  // namespace moontide::io
