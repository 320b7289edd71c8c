#include "tests/bench/played_worker.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/fleet/fleet.h"
#include "tests/bench/paired_rounds.h"

namespace warmpath::bench {
namespace {

// Of what the router tells an agent only the session is of interest.
class Deaf final : public FeedSink {
 public:
  void Send(FeedReply reply) override {
    if (const auto* registered = std::get_if<RegisteredReply>(&reply)) {
      session = registered->session;
    }
  }
  void Close(absl::Status) override {}
  SessionId session = 0;
};

}  // namespace

PlayedWorker AddWorker(App& app, int number, std::uint32_t engine_block_size, bool has_events) {
  Registration r;
  r.agent_instance = absl::StrFormat("%016d", number);
  r.worker_id = absl::StrCat("worker-", number);
  r.model = std::string(kModel);
  r.ranks = {{.rank = 0,
              .address = absl::StrCat("10.0.0.", number + 1, ":8000"),
              .epoch = 1,
              .engine_block_size = engine_block_size,
              .kv_capacity_tokens = 10'000'000,
              .has_events = has_events,
              .prefill_tokens_per_s = 20'000}};
  const auto sink = std::make_shared<Deaf>();
  auto feed = app.fleet().Register(r, "bench", sink);
  if (!feed.ok()) Die(feed.status().ToString());
  return {.feed = *std::move(feed), .session = sink->session};
}

}  // namespace warmpath::bench
