// What one engine's worker looks like from outside: a copy for metrics and health checks.
#ifndef WARMPATH_CLIENT_AGENT_WORKER_VIEW_H_
#define WARMPATH_CLIENT_AGENT_WORKER_VIEW_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/agent/canonical/block_changes.h"
#include "client/agent/canonical/feed_cause.h"
#include "client/agent/engine/zmq_source.h"
#include "client/agent/events/engine_event.h"
#include "client/agent/feed/feed_sequencer.h"
#include "client/agent/feed/rank_feed.h"
#include "client/agent/publish/publisher.h"
#include "core/base/ids.h"

namespace warmpath {

struct RankView {
  Rank rank = 0;
  bool running = false;  // the feed has begun; the rest means nothing before
  Epoch epoch = 0;
  FeedCauses causes;
  std::optional<std::uint64_t> engine_seq;
  double event_lag_s = 0;
  std::array<SetDigest, kTierCount> held{};
  std::uint64_t engine_blocks = 0;
  std::uint64_t orphans = 0;
  std::uint64_t holes = 0;
  std::uint64_t bytes = 0;
  FeedCounts feed;
  RankFeed::EventCounts events;
  SkipCounts skipped;
  ZmqSourceCounts source;
};

struct WorkerView {
  std::string worker;
  std::string model;
  bool engine_up = false;
  std::uint64_t scrape_failures = 0;
  std::vector<RankView> ranks;
  std::vector<PublisherView> routers;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_WORKER_VIEW_H_
