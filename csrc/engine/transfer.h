// A transfer: a batch of copies with one outcome and one quiet.
//
// Outcome (done): every record has its result, write-once; at the latest when nothing moved for the progress timeout.
// Quiet: nothing of this transfer touches any memory any more. Until then the local regions stay pinned and the object
// keeps itself alive through the engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/dump.h"
#include "engine/plan.h"
#include "transport/transport.h"

namespace moontide::engine {

struct TransferOptions {
  int64_t progress_timeout_ns = 0;  // 0: the engine's
  std::move_only_function<void()> done = {};
  std::move_only_function<void()> quiet = {};
  // Names it wherever it is seen, also at the peer that serves it; at most kTraceBytesMax. Empty: a number is made up.
  std::string trace = {};
  bool served = false;  // for a peer that asked for it
  bool urgent = false;  // overtakes what is not
  // For the mailbox of each peer it copied from or to, once all bytes are visible there; done only when they have it.
  std::optional<Bytes> notify = {};
  bool caller_copies = false;  // the submitter runs take_work() itself; false: the reactor does, a slice per turn
};

class Transfer final : public transport::SliceOwner,
                       public memory::PinUser,
                       public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(Engine& engine, uint64_t number, TransferOptions options);
  ~Transfer() override;

  // --- under the engine's lock ---
  bool done() const { return done_; }
  bool quiet() const { return done_ && live_slices_ == 0; }
  // Code per record, in order; kOk only for complete ones. Once launched.
  const std::vector<Code>& results() const { return results_.empty() ? plan_->results : results_; }
  // What went wrong first, empty when nothing did.
  const Error& error() const { return error_; }
  uint64_t bytes() const { return plan_->bytes; }
  uint64_t bytes_moved() const { return bytes_moved_; }
  // What peers are still to put into memory of theirs, by their own hand.
  uint64_t peer_bytes_left() const { return done_ ? 0 : peer_bytes_; }
  // Names of the paths that carried it, in order of first use: "shm", "cma+tcp".
  std::string path() const;

  uint64_t number() const { return number_; }
  int64_t submitted_ns() const { return submitted_ns_; }
  std::string trace() const override;
  // Looks at `walk` slices at most and takes off what it looked at.
  TransferView view(int64_t now_ns, size_t& walk) const;

  // Ends it with CANCELED unless it is done; quiet follows.
  void cancel();

  // Copies without a peer's help ("synchronous work"). Taken under the lock, run without it, reported under it.
  struct Work {
    transport::Slice* slice = nullptr;
    std::shared_ptr<transport::Endpoint> endpoint;
    std::shared_ptr<io::HeldLeave> leave;  // for a write into another process
    Result<> run() const;
  };
  std::optional<Work> take_work();
  void finish_work(const Work& work, Result<> outcome);
  bool has_work() const { return work_next_ < work_.size(); }
  uint64_t work_bytes() const { return work_bytes_; }
  // Leaves what work there is to the reactor: a slice per turn, while no caller has claimed it.
  void run_in_reactor();
  // A caller runs the work between these two; what it leaves undone goes back to the reactor.
  void claim_work() { ++claims_; }
  void unclaim_work();

  // --- for the engine ---
  // `plan` holds.
  void launch(PlanRef plan);
  int64_t progress_timeout_ns() const;
  // --- for the scheduler: parts that wait for a path of one transport ---
  bool urgent() const { return options_.urgent; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  struct Way {
    const Link* link;
    std::string_view transport;
    bool operator==(const Way&) const = default;
  };
  uint64_t next_bytes(const Way& way) const;  // of the first one, 0: none
  // Whether it was not in that queue yet.
  bool enter_queue(const Way& way);
  void leave_queue(const Way& way);
  // Posts the first one of the way on `endpoint`; true when more of them wait.
  bool post_next(const Way& way, const std::shared_ptr<transport::Endpoint>& endpoint);

  // Looks whether the deadline on progress has passed.
  void check_deadline(int64_t now_ns);
  // Reports it when it has become slow, once.
  void check_slow(int64_t now_ns);
  // The engine goes away: everything ends now.
  void abandon();

  // SliceOwner
  void progressed(transport::Slice& slice, uint64_t bytes) override;
  void completed(transport::Slice& slice, Result<> outcome) override;

  // PinUser: number, peer, stage.
  std::string describe_use(const memory::Region& region) const override;

 private:
  struct Part {
    transport::Slice slice;  // its pieces are the plan's
    const Plan::Part* planned = nullptr;
    const memory::Region* local = nullptr;  // pinned
    std::shared_ptr<Link> link;
    std::shared_ptr<transport::Endpoint> endpoint;
    Part* next_waiting = nullptr;  // of the same queue
    uint64_t moved = 0;
    int64_t since_ns = 0;  // in its stage
    bool copied = false;   // by a thread of this process, no peer needed
    bool posted = false;
    bool over = false;
  };
  // Parts that wait for room on a path, in the order in which they came; see Scheduler.
  struct Queue {
    Way way;
    Part* first = nullptr;
    Part* last = nullptr;
    bool entered = false;  // the scheduler has the transfer in its queue of that way
  };

  void take_parts();
  Queue& queue_of(const Way& way);
  const Queue* find_queue(const Way& way) const;
  void wait_for_path(Part& part);
  void route(Part& part);
  void count_path(const transport::Endpoint& endpoint);
  // An endpoint has it from now on; returns the time.
  int64_t mark_posted(Part& part);
  void observe_over(const Part& part, const Result<>& outcome, bool again);
  void observe_done();
  bool is_slow(int64_t now_ns) const;
  void report_slow(int64_t now_ns, bool over);
  void settle(Part& part, const Result<>& outcome);
  void fail_records(const Part& part, const Error& error);
  void finish_if_complete();
  bool tell_peers();
  void set_done();
  void end_early(const Error& error);

  Engine& engine_;
  uint64_t number_;
  TransferOptions options_;
  int64_t submitted_ns_ = 0;
  int64_t last_progress_ns_ = 0;
  PlanRef plan_;
  std::vector<Code> results_;  // empty: still those of the plan
  Error error_{Code::kOk, ""};
  bool done_ = false;
  bool quiet_told_ = false;
  uint64_t bytes_moved_ = 0, work_bytes_ = 0, peer_bytes_ = 0;
  std::vector<Part> parts_;  // addresses stay, once launched
  size_t live_slices_ = 0;
  std::vector<Part*> work_;  // for synchronous endpoints; from work_next_ on
  size_t work_next_ = 0;
  std::vector<Queue> queues_;
  uint64_t waiting_bytes_ = 0;  // of all queues
  size_t posted_ = 0;           // parts that an endpoint has
  size_t telling_ = 0;          // notifications without an answer
  std::vector<memory::Pin> pins_;
  std::vector<std::string_view> paths_;
  bool reactor_running_ = false;
  bool slow_told_ = false;
  uint32_t claims_ = 0;
};

using TransferRef = std::shared_ptr<Transfer>;

}  // namespace moontide::engine
