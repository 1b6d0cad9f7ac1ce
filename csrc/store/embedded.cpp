#include "store/embedded.h"

namespace moontide::store {

Result<std::unique_ptr<Member>> Member::create(io::Reactor& reactor, io::Network& network, engine::Engine& engine,
                                               MemberOptions options) {
  std::unique_ptr<Member> member(new Member);
  if (options.master.empty()) {
    options.master = "inproc:master-" + engine.instance().text();
    options.master_options.listen = options.master;
    options.master_options.earlier_lease_ns = 0;  // within a process nobody was before this master
    TRY(member->master_, Master::create(reactor, network, options.master_options));
  }
  if (options.lend_bytes > 0) {
    TRY(auto arena, options.private_arena ? memory::Arena::create_private(options.lend_bytes)
                                          : memory::Arena::create(options.lend_bytes, "moontide-pool"));
    options.node_options.master = options.master;
    TRY(member->node_, Node::create(reactor, network, engine, std::move(arena), options.node_options));
  }
  options.client_options.master = options.master;
  member->client_ = std::make_unique<Client>(reactor, network, engine, options.client_options);
  return member;
}

Member::~Member() {
  client_.reset();
  node_.reset();
}

}  // namespace moontide::store
