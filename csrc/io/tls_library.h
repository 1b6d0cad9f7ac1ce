// OpenSSL 3 as this process finds it, loaded when TLS is asked for: the module itself does not need it. Only what is
// called here is declared, so that no headers are needed either; the signatures are OpenSSL's public ones.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"

namespace moontide::io {

struct TlsLibrary {
  struct Context;  // SSL_CTX
  struct Session;  // SSL
  struct Pipe;     // BIO
  struct Method;
  struct PipeMethod;
  using PasswordCallback = int(char* buffer, int size, int writing, void* user);

  // UNSUPPORTED: no OpenSSL 3 on this machine; names the file and the loader's reason.
  static Result<std::shared_ptr<const TlsLibrary>> load();
  ~TlsLibrary();
  TlsLibrary(const TlsLibrary&) = delete;
  TlsLibrary& operator=(const TlsLibrary&) = delete;

  // What went wrong in this thread since the last time it was asked, oldest first.
  std::string take_errors() const;

  const Method* (*TLS_method)();
  Context* (*SSL_CTX_new)(const Method*);
  void (*SSL_CTX_free)(Context*);
  long (*SSL_CTX_ctrl)(Context*, int command, long number, void* pointer);
  int (*SSL_CTX_use_certificate_chain_file)(Context*, const char* file);
  int (*SSL_CTX_use_PrivateKey_file)(Context*, const char* file, int type);
  int (*SSL_CTX_check_private_key)(const Context*);
  int (*SSL_CTX_load_verify_file)(Context*, const char* file);
  void (*SSL_CTX_set_verify)(Context*, int mode, void* callback);
  void (*SSL_CTX_set_default_passwd_cb)(Context*, PasswordCallback*);
  int (*SSL_CTX_set_num_tickets)(Context*, size_t count);
  Session* (*SSL_new)(Context*);
  void (*SSL_free)(Session*);
  void (*SSL_set_bio)(Session*, Pipe* in, Pipe* out);
  void (*SSL_set_accept_state)(Session*);
  void (*SSL_set_connect_state)(Session*);
  int (*SSL_do_handshake)(Session*);
  int (*SSL_read)(Session*, void* into, int size);
  int (*SSL_write)(Session*, const void* from, int size);
  int (*SSL_get_error)(const Session*, int returned);
  long (*SSL_get_verify_result)(const Session*);
  int (*SSL_export_keying_material)(Session*, unsigned char* out, size_t size, const char* label, size_t label_size,
                                    const unsigned char* context, size_t context_size, int use_context);
  Pipe* (*BIO_new)(const PipeMethod*);
  const PipeMethod* (*BIO_s_mem)();
  int (*BIO_read)(Pipe*, void* into, int size);
  int (*BIO_write)(Pipe*, const void* from, int size);
  size_t (*BIO_ctrl_pending)(Pipe*);
  unsigned long (*ERR_get_error)();
  void (*ERR_clear_error)();
  const char* (*ERR_reason_error_string)(unsigned long error);
  const char* (*X509_verify_cert_error_string)(long code);

 private:
  TlsLibrary() = default;
  void* ssl_ = nullptr;
  void* crypto_ = nullptr;
};

}  // namespace moontide::io
