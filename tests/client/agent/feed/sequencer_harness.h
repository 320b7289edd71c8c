// A feed sequencer whose messages, replies and time come from a test.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_FEED_SEQUENCER_HARNESS_H_
#define WARMPATH_TESTS_CLIENT_AGENT_FEED_SEQUENCER_HARNESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/agent/feed/feed_sequencer.h"
#include "client/agent/feed/payload_hash.h"
#include "gtest/gtest.h"

namespace warmpath::testing {

// A payload of message `seq` of process `process`.
inline std::string Payload(char process, std::uint64_t seq) {
  return absl::StrCat(std::string(1, process), seq);
}

inline FeedPosition PositionAt(char process, std::uint64_t seq, std::optional<double> start = {}) {
  return {seq, PayloadHash(Payload(process, seq)), start};
}

// Drives a sequencer and records what it asks for.
class SequencerHarness : public FeedActions {
 public:
  explicit SequencerHarness(bool replay, FeedOptions options = {})
      : sequencer(WithReplay(options, replay), this) {}

  void Live(char process, std::uint64_t seq) {
    sequencer.OnMessage(seq, Payload(process, seq), now);
  }
  void LiveRange(char process, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seq = first; seq <= last; ++seq) Live(process, seq);
  }
  // The open request is answered with messages first..last and the end marker.
  void Reply(char process, std::uint64_t first, std::uint64_t last) {
    const std::uint64_t attempt = *open;
    for (std::uint64_t seq = first; seq <= last; ++seq) {
      sequencer.OnReplayMessage(attempt, seq, Payload(process, seq), now);
    }
    sequencer.OnReplayEnd(attempt, now);
  }
  void ReplyEmpty() { sequencer.OnReplayEnd(*open, now); }
  void Advance(absl::Duration by) {
    for (absl::Duration step = absl::Milliseconds(100); by > absl::ZeroDuration(); by -= step) {
      now += step;
      sequencer.Tick(now);
    }
  }
  // What happened since the last call, as "a0 a1 loss:gap epoch ask:5".
  std::vector<std::string> Take() { return std::exchange(log, {}); }

  void Apply(std::uint64_t seq, std::string_view payload, std::uint64_t payload_hash) override {
    EXPECT_EQ(payload_hash, PayloadHash(payload));
    EXPECT_EQ(sequencer.position().last_seq, seq);
    log.emplace_back(payload);
  }
  void RequestReplay(std::uint64_t from, std::uint64_t attempt) override {
    EXPECT_FALSE(open.has_value()) << "one request at a time";
    open = attempt;
    log.push_back(absl::StrCat("ask:", from));
  }
  void ReplayDone(std::uint64_t attempt) override {
    EXPECT_EQ(open, attempt);
    open.reset();
  }
  void NewEpoch(std::string_view reason) override {
    EXPECT_FALSE(reason.empty());
    EXPECT_EQ(sequencer.position().last_seq, std::nullopt);
    log.push_back("epoch");
  }
  void Loss(LossKind kind) override {
    log.push_back(kind == LossKind::kGap ? "loss:gap" : "loss:start");
  }

  static FeedOptions WithReplay(FeedOptions options, bool replay) {
    options.replay = replay;
    return options;
  }

  absl::Time now = absl::FromUnixSeconds(1000);
  std::vector<std::string> log;
  std::optional<std::uint64_t> open;
  FeedSequencer sequencer;
};

inline bool Exact(const SequencerHarness& h) { return h.sequencer.causes().empty(); }

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_FEED_SEQUENCER_HARNESS_H_
