#include "io/tls_library.h"

#include <dlfcn.h>

namespace moontide::io {
namespace {

constexpr char kSslFile[] = "libssl.so.3";
constexpr char kCryptoFile[] = "libcrypto.so.3";

template <class F>
bool find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

Result<void*> open_library(const char* file) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = dlerror();
  return fail(Code::kUnsupported, std::string("TLS needs OpenSSL 3, and ") + file +
                                      " cannot be loaded: " + (why != nullptr ? why : "no reason given"));
}

}  // namespace

Result<std::shared_ptr<const TlsLibrary>> TlsLibrary::load() {
  std::shared_ptr<TlsLibrary> library(new TlsLibrary);
  TlsLibrary& l = *library;
  TRY(l.crypto_, open_library(kCryptoFile));
  TRY(l.ssl_, open_library(kSslFile));
  const char* missing = nullptr;
  auto ssl = [&](const char* name, auto*& function) {
    if (!find(l.ssl_, name, function)) missing = name;
  };
  auto crypto = [&](const char* name, auto*& function) {
    if (!find(l.crypto_, name, function)) missing = name;
  };
  ssl("TLS_method", l.TLS_method);
  ssl("SSL_CTX_new", l.SSL_CTX_new);
  ssl("SSL_CTX_free", l.SSL_CTX_free);
  ssl("SSL_CTX_ctrl", l.SSL_CTX_ctrl);
  ssl("SSL_CTX_use_certificate_chain_file", l.SSL_CTX_use_certificate_chain_file);
  ssl("SSL_CTX_use_PrivateKey_file", l.SSL_CTX_use_PrivateKey_file);
  ssl("SSL_CTX_check_private_key", l.SSL_CTX_check_private_key);
  ssl("SSL_CTX_load_verify_file", l.SSL_CTX_load_verify_file);
  ssl("SSL_CTX_set_verify", l.SSL_CTX_set_verify);
  ssl("SSL_CTX_set_default_passwd_cb", l.SSL_CTX_set_default_passwd_cb);
  ssl("SSL_CTX_set_num_tickets", l.SSL_CTX_set_num_tickets);
  ssl("SSL_new", l.SSL_new);
  ssl("SSL_free", l.SSL_free);
  ssl("SSL_set_bio", l.SSL_set_bio);
  ssl("SSL_set_accept_state", l.SSL_set_accept_state);
  ssl("SSL_set_connect_state", l.SSL_set_connect_state);
  ssl("SSL_do_handshake", l.SSL_do_handshake);
  ssl("SSL_read", l.SSL_read);
  ssl("SSL_write", l.SSL_write);
  ssl("SSL_get_error", l.SSL_get_error);
  ssl("SSL_get_verify_result", l.SSL_get_verify_result);
  ssl("SSL_export_keying_material", l.SSL_export_keying_material);
  crypto("BIO_new", l.BIO_new);
  crypto("BIO_s_mem", l.BIO_s_mem);
  crypto("BIO_read", l.BIO_read);
  crypto("BIO_write", l.BIO_write);
  crypto("BIO_ctrl_pending", l.BIO_ctrl_pending);
  crypto("ERR_get_error", l.ERR_get_error);
  crypto("ERR_clear_error", l.ERR_clear_error);
  crypto("ERR_reason_error_string", l.ERR_reason_error_string);
  crypto("X509_verify_cert_error_string", l.X509_verify_cert_error_string);
  if (missing != nullptr) {
    return fail(Code::kUnsupported, std::string("TLS needs OpenSSL 3, and what is there has no ") + missing);
  }
  return std::shared_ptr<const TlsLibrary>(std::move(library));
}

TlsLibrary::~TlsLibrary() {
  if (ssl_ != nullptr) dlclose(ssl_);
  if (crypto_ != nullptr) dlclose(crypto_);
}

std::string TlsLibrary::take_errors() const {
  std::string text;
  for (unsigned long error = ERR_get_error(); error != 0; error = ERR_get_error()) {
    const char* reason = ERR_reason_error_string(error);
    if (!text.empty()) text += "; ";
    text += reason != nullptr ? reason : "error " + std::to_string(error);
  }
  return text;
}

}  // namespace moontide::io
