// TLS over streams within the process and over sockets: bytes arrive as they were written, strangers do not get in, and
// new files are used by new connections. The certificates are made by the openssl command.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "io/inproc.h"
#include "io/tls.h"
#include "rpc/secure_network.h"
#include "unit/io_support.h"

namespace moontide::io {
namespace {

using test::RecordingSink;
using test::run_until;

// An authority and certificates of it, in a folder of their own.
class Authority {
 public:
  Authority()
      : folder_(std::filesystem::temp_directory_path() / ("moontide-tls-" + std::to_string(getpid()) + "-" +
                                                          std::to_string(reinterpret_cast<uintptr_t>(this)))) {
    std::filesystem::create_directories(folder_);
    run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca -keyout ca.key -out "
        "ca.pem");
  }
  ~Authority() { std::filesystem::remove_all(folder_); }

  TlsFiles issue(const std::string& name) {
    run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name + " -keyout " + name +
        ".key -out " + name + ".csr");
    run("x509 -req -in " + name + ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out " + name + ".pem");
    return {path(name + ".pem"), path(name + ".key"), path("ca.pem")};
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  void run(const std::string& command) const {
    const std::string line = "cd " + folder_.string() + " && openssl " + command + " >openssl.log 2>&1";
    REQUIRE_MESSAGE(std::system(line.c_str()) == 0, line);
  }
  std::filesystem::path folder_;
};

std::shared_ptr<TlsCredentials> credentials_of(const TlsFiles& files) {
  auto credentials = TlsCredentials::create(files);
  REQUIRE_MESSAGE(credentials, (credentials ? "" : credentials.error().text()));
  return *credentials;
}

struct Ends {
  explicit Ends(const std::string& address) : sockets(reactor), inproc(reactor), network(inproc, sockets) {
    pair = test::connect_pair(reactor, network, address);
  }
  void wrap(const TlsFiles& of_client, const TlsFiles& of_server) {
    client = make_tls_stream(reactor, std::move(pair.client), credentials_of(of_client), TlsRole::kConnector, {});
    server = make_tls_stream(reactor, std::move(pair.server), credentials_of(of_server), TlsRole::kAcceptor,
                             to_bytes(as_bytes("no")));
  }
  bool until(const std::function<bool()>& ready) { return run_until(reactor, ready); }

  EpollReactor reactor;
  SocketNetwork sockets;
  InprocNetwork inproc;
  RoutedNetwork network;
  test::Pair pair;
  std::unique_ptr<Stream> client, server;
};

TEST_CASE("tls: bytes arrive as they were written, both ways, in copies and references") {
  Authority authority;
  const TlsFiles files = authority.issue("one"), other = authority.issue("two");
  for (const std::string address : {"inproc:tls", "127.0.0.1:0"}) {
    CAPTURE(address);
    Ends ends(address);
    ends.wrap(files, other);
    RecordingSink at_client(70000), at_server(1000);
    SeededRandom random(11);
    Bytes to_server, to_client;
    std::vector<Bytes> kept;
    int sent = 0, references = 0;
    // queued before the handshake
    ends.client->write(as_bytes("early"));
    to_server = to_bytes(as_bytes("early"));
    ends.client->start(at_client);
    ends.server->start(at_server);
    for (int i = 0; i < 60; ++i) {
      Bytes part = test::pattern(random.below(i % 10 == 9 ? 900000 : 3000), static_cast<uint64_t>(i));
      Stream& from = i % 2 ? *ends.client : *ends.server;
      Bytes& whole = i % 2 ? to_server : to_client;
      whole.insert(whole.end(), part.begin(), part.end());
      if (i % 3 == 0) {
        kept.push_back(std::move(part));
        ++references;
        from.write_reference(kept.back(), [&](Result<> outcome) {
          CHECK(outcome);
          ++sent;
        });
      } else {
        from.write(part);
      }
    }
    REQUIRE(ends.until(
        [&] { return at_server.data.size() == to_server.size() && at_client.data.size() == to_client.size(); }));
    CHECK(at_server.data == to_server);
    CHECK(at_client.data == to_client);
    CHECK(ends.until([&] { return sent == references; }));
    CHECK(ends.until([&] { return ends.client->pending() == 0; }));
    CHECK(ends.client->binding().size() == 32);
    CHECK(ends.client->binding() == ends.server->binding());
    ends.client.reset();
    CHECK(ends.until([&] { return at_server.closes == 1; }));
    CHECK(at_server.error.code == Code::kPeerLost);
  }
}

TEST_CASE("tls: a sink without room holds the peer back, and gets the rest when it has") {
  Authority authority;
  const TlsFiles files = authority.issue("one");
  Ends ends("127.0.0.1:0");
  ends.wrap(files, files);
  RecordingSink at_client, at_server(4096, 100);
  ends.client->start(at_client);
  ends.server->start(at_server);
  const Bytes much = test::pattern(32u << 20, 1);
  bool sent = false;
  ends.client->write_reference(much, [&](Result<> outcome) { sent = outcome.has_value(); });
  REQUIRE(ends.until([&] { return at_server.data.size() == 100; }));
  // the kernel takes some megabytes, and no more
  CHECK_FALSE(run_until(ends.reactor, [&] { return sent; }, 100 * kMillisecond));
  CHECK(ends.client->pending() > 1u << 20);
  at_server.set_capacity(SIZE_MAX);
  ends.server->resume();
  REQUIRE(ends.until([&] { return at_server.data.size() == much.size(); }));
  CHECK(at_server.data == much);
  CHECK(ends.until([&] { return sent; }));
}

TEST_CASE("tls: the other end closes while nobody reads: what it sent before is delivered first") {
  Authority authority;
  const TlsFiles files = authority.issue("one");
  Ends ends("inproc:tls");
  ends.wrap(files, files);
  RecordingSink at_client, at_server(4096, 10);
  ends.client->start(at_client);
  ends.server->start(at_server);
  ends.client->write(test::pattern(50000, 3));
  REQUIRE(ends.until([&] { return at_server.data.size() == 10 && ends.client->pending() == 0; }));
  ends.client.reset();
  CHECK_FALSE(run_until(ends.reactor, [&] { return at_server.closes > 0; }, 20 * kMillisecond));
  at_server.set_capacity(SIZE_MAX);
  ends.server->resume();
  CHECK(ends.until([&] { return at_server.closes == 1; }));
  CHECK(at_server.data == test::pattern(50000, 3));
}

TEST_CASE("tls: a certificate of another authority, or none, is refused at both ends") {
  Authority ours, theirs;
  const TlsFiles good = ours.issue("one");
  TlsFiles bad = theirs.issue("two");
  Ends ends("127.0.0.1:0");
  RecordingSink at_client, at_server;
  SUBCASE("the connector distrusts the acceptor") { ends.wrap(good, bad); }
  SUBCASE("the acceptor distrusts the connector") {
    bad.authority = good.authority;  // it trusts the acceptor, but has no certificate from there
    ends.wrap(bad, good);
  }
  ends.client->start(at_client);
  ends.server->start(at_server);
  ends.client->write(as_bytes("not for you"));
  ends.server->write(as_bytes("nor you"));
  CHECK(ends.until([&] { return at_client.closes == 1 && at_server.closes == 1; }));
  CHECK(at_client.error.code == Code::kDenied);
  CHECK(at_server.error.code == Code::kDenied);
  CHECK(at_server.data.empty());
  CAPTURE(at_client.error.message);
  CAPTURE(at_server.error.message);
  CHECK((at_client.error.message + at_server.error.message).find("certificate verify failed") != std::string::npos);
}

TEST_CASE("tls: who does not speak it is told so") {
  Authority authority;
  const TlsFiles files = authority.issue("one");
  Ends ends("127.0.0.1:0");
  auto server = make_tls_stream(ends.reactor, std::move(ends.pair.server), credentials_of(files), TlsRole::kAcceptor,
                                to_bytes(as_bytes("speak TLS")));
  RecordingSink at_client, at_server;
  ends.pair.client->start(at_client);
  server->start(at_server);
  ends.pair.client->write(as_bytes("MTM1 and so on"));
  CHECK(ends.until([&] { return at_server.closes == 1 && at_client.text() == "speak TLS"; }));
  CHECK(at_server.error.code == Code::kDenied);
}

TEST_CASE("tls: files that are missing or do not belong together are named") {
  Authority authority;
  const TlsFiles one = authority.issue("one"), two = authority.issue("two");
  auto wrong = [](const TlsFiles& files, const std::string& option) {
    auto made = TlsCredentials::create(files);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == Code::kInvalid);
    CAPTURE(made.error().message);
    CHECK(made.error().message.find(option) != std::string::npos);
  };
  wrong({"/nowhere.pem", one.key, one.authority}, "tls_cert = '/nowhere.pem'");
  wrong({one.certificate, two.key, one.authority}, "tls_key");
  wrong({one.certificate, one.key, one.key}, "tls_ca");
}

TEST_CASE("tls: new files are used by new connections; files that do not load leave the old ones") {
  Authority before, after;
  const TlsFiles old_files = before.issue("one"), new_files = after.issue("one");
  Authority place;
  const TlsFiles files{place.path("cert.pem"), place.path("key.pem"), place.path("authority.pem")};
  auto put = [&](const TlsFiles& from) {
    std::filesystem::copy_file(from.key, files.key, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(from.authority, files.authority, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::copy_file(from.certificate, files.certificate, std::filesystem::copy_options::overwrite_existing);
  };
  put(old_files);
  auto credentials = credentials_of(files);
  const TlsLibrary& library = credentials->library();
  int64_t now = 1;
  auto look = [&] {
    auto* session = credentials->session(now);
    REQUIRE(session != nullptr);
    library.SSL_free(session);
    now += 2 * kSecond;
  };
  look();
  CHECK(credentials->reloads() == 0);
  std::ofstream(files.certificate) << "rubbish";
  look();
  CHECK(credentials->reloads_failed() == 1);
  look();  // once for each change
  CHECK(credentials->reloads_failed() == 1);
  put(new_files);
  look();
  CHECK(credentials->reloads() == 1);
  // who has the old authority's certificate is a stranger now, who has the new one's is not
  for (bool fresh : {false, true}) {
    Ends ends("127.0.0.1:0");
    auto server = make_tls_stream(ends.reactor, std::move(ends.pair.server), credentials, TlsRole::kAcceptor, {});
    auto client = make_tls_stream(ends.reactor, std::move(ends.pair.client),
                                  credentials_of(fresh ? new_files : old_files), TlsRole::kConnector, {});
    RecordingSink at_client, at_server;
    client->start(at_client);
    server->start(at_server);
    client->write(as_bytes("hello"));
    CHECK(ends.until([&] { return fresh ? at_server.text() == "hello" : at_server.closes == 1; }));
  }
}

TEST_CASE("tls: any damage to what is sent ends the connection, and strangers' bytes do no harm") {
  Authority authority;
  const TlsFiles files = authority.issue("one");
  SeededRandom random(9);
  for (int turn = 0; turn < 20; ++turn) {
    Ends ends("inproc:tls");
    auto server =
        make_tls_stream(ends.reactor, std::move(ends.pair.server), credentials_of(files), TlsRole::kAcceptor, {});
    RecordingSink at_client, at_server;
    ends.pair.client->start(at_client);
    server->start(at_server);
    Bytes noise(random.below(40000) + 5);
    random.fill(noise);
    noise[0] = std::byte{0x16};
    if (turn % 2) noise[1] = std::byte{3}, noise[2] = std::byte{1};
    ends.pair.client->write(noise);
    ends.pair.client.reset();
    CHECK(ends.until([&] { return at_server.closes == 1; }));
    CHECK(at_server.data.empty());
  }
}

TEST_CASE("tls and the secret together: both are needed, and a proof belongs to its channel") {
  Authority authority;
  auto security = [&](std::string_view secret, const std::string& name) {
    auto made = std::make_shared<rpc::Security>();
    made->secret = *rpc::ClusterSecret::create(as_bytes(secret));
    if (!name.empty()) made->tls = credentials_of(authority.issue(name));
    return made;
  };
  EpollReactor reactor;
  SocketNetwork sockets(reactor);
  auto at_door = security("the cluster's own secret", "door");
  rpc::SecureNetwork door(reactor, sockets, "engine", at_door);
  std::unique_ptr<Stream> accepted;
  RecordingSink at_server;
  auto listener = door.listen("127.0.0.1:0", [&](std::unique_ptr<Stream> stream) {
    accepted = std::move(stream);
    accepted->start(at_server);
  });
  REQUIRE(listener);
  auto visit = [&](std::shared_ptr<rpc::Security> with) {
    rpc::SecureNetwork network(reactor, sockets, "engine", std::move(with));
    std::optional<Error> outcome;
    std::unique_ptr<Stream> stream;
    RecordingSink sink;
    network.connect((*listener)->address(), kSecond, [&](Result<std::unique_ptr<Stream>> made) {
      outcome = made ? Error{Code::kOk, ""} : made.error();
      if (!made) return;
      stream = std::move(*made);
      stream->start(sink);
      stream->write(as_bytes("inside"));
    });
    REQUIRE(run_until(reactor, [&] { return outcome && (!stream || at_server.text() == "inside"); }));
    return *outcome;
  };
  CHECK(visit(security("the cluster's own secret", "guest")).code == Code::kOk);
  CHECK(at_server.text() == "inside");
  CHECK(visit(security("another secret, longer", "guest")).message.find("secrets differ") != std::string::npos);
  const Error plain = visit(security("the cluster's own secret", ""));
  CHECK(plain.code == Code::kDenied);
  CHECK(plain.message.find("TLS is required here") != std::string::npos);
  CHECK(at_door->counters.refused == 2);
}

TEST_CASE("tls against a plain port is refused with the reason") {
  Authority authority;
  EpollReactor reactor;
  SocketNetwork sockets(reactor);
  auto plain = std::make_shared<rpc::Security>();
  plain->secret = *rpc::ClusterSecret::create(as_bytes("the cluster's own secret"));
  auto encrypted = std::make_shared<rpc::Security>(*plain);
  encrypted->tls = credentials_of(authority.issue("guest"));
  rpc::SecureNetwork door(reactor, sockets, "engine", plain), guest(reactor, sockets, "engine", encrypted);
  auto listener = door.listen("127.0.0.1:0", [](std::unique_ptr<Stream>) { FAIL("came in"); });
  REQUIRE(listener);
  std::optional<Error> error;
  guest.connect((*listener)->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
    REQUIRE_FALSE(stream);
    error = stream.error();
  });
  REQUIRE(run_until(reactor, [&] { return error.has_value(); }));
  CHECK(error->message.find("it may not speak TLS") != std::string::npos);
  CHECK(plain->counters.last_refusal.find("the peer speaks TLS, which is not configured here") != std::string::npos);
}

}  // namespace
}  // namespace moontide::io
