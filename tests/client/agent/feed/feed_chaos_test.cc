// A feed under everything at once: lost messages, restarts, reconnects, replay servers with small
// buffers that drop frames or do not answer. Whatever happens, what was applied is a part of what
// one engine process sent, in order; a feed without doubts that lost nothing has all of it; and
// when the faults end it catches up.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/feed/feed_sequencer.h"
#include "core/base/random.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

// The publisher's side: one process at a time.
struct Engine {
  int process = 0;
  std::uint64_t next = 0;
  std::size_t buffer_steps = 0;

  std::string Payload(std::uint64_t seq) const { return absl::StrCat(process, ":", seq); }
  std::uint64_t OldestKept() const { return next > buffer_steps ? next - buffer_steps : 0; }
};

class Chaos : public FeedActions {
 public:
  Chaos(std::uint64_t seed, bool replay) : random_(seed), feed_(Options(replay), this) {
    engine_.buffer_steps = random_.Below(3) == 0 ? 5 : 1000;
    feed_.Start(now_);
    feed_.OnConnected(now_);
  }

  void Step() {
    switch (random_.Below(40)) {
      case 0:
        Restart();
        break;
      case 1:
        // The connection breaks; the process lives on.
        Deliver(live_.size());
        feed_.OnDisconnected(now_);
        Publish(random_.Below(4), /*lost=*/true);
        feed_.OnConnected(now_);
        break;
      case 2:
        Publish(1 + random_.Below(3), /*lost=*/true);
        break;
      default:
        Publish(random_.Below(4), /*lost=*/false);
        break;
    }
    Deliver(random_.Below(live_.size() + 1));
    if (random_.Below(3) == 0) Answer(/*faults=*/true);
    Tick(absl::Milliseconds(random_.Below(300)));
  }

  void Settle() {
    Deliver(live_.size());
    for (int i = 0; i < 400; ++i) {
      Answer(/*faults=*/false);
      Tick(absl::Milliseconds(100));
    }
  }

  // What must hold at any time.
  void Check() {
    ASSERT_FALSE(failed_);
    if (!feed_.causes().empty() || losses_ != 0) return;
    for (std::uint64_t seq = 0; seq < applied_.size(); ++seq) ASSERT_EQ(applied_[seq], seq);
  }

  bool AtRest() const {
    const bool current = applied_process_ == engine_.process || engine_.next == 0;
    const std::uint64_t last = applied_.empty() ? 0 : applied_.back() + 1;
    return feed_.causes().empty() && current && last == engine_.next;
  }
  const FeedSequencer& feed() const { return feed_; }

  void Apply(std::uint64_t seq, std::string_view payload, std::uint64_t) override {
    const std::string text(payload);
    const int process = std::stoi(text.substr(0, text.find(':')));
    // One process per epoch, ascending, consecutive but for announced losses.
    failed_ |= applied_process_.has_value() && *applied_process_ != process;
    failed_ |= !loss_announced_ && seq != (applied_.empty() ? 0 : applied_.back() + 1);
    failed_ |= !applied_.empty() && seq <= applied_.back();
    applied_process_ = process;
    applied_.push_back(seq);
    loss_announced_ = false;
  }
  void RequestReplay(std::uint64_t from, std::uint64_t attempt) override {
    failed_ |= request_.has_value();
    request_ = {from, attempt};
  }
  void ReplayDone(std::uint64_t attempt) override {
    failed_ |= !request_.has_value() || request_->second != attempt;
    request_.reset();
  }
  void NewEpoch(std::string_view) override {
    applied_.clear();
    applied_process_.reset();
    losses_ = 0;
    loss_announced_ = false;
  }
  void Loss(LossKind kind) override {
    failed_ |= (kind == LossKind::kMissedStart) != applied_.empty();
    ++losses_;
    loss_announced_ = true;
  }

 private:
  static FeedOptions Options(bool replay) {
    FeedOptions options;
    options.replay = replay;
    options.max_buffered_messages = 6;
    return options;
  }

  void Publish(std::uint64_t n, bool lost) {
    for (; n > 0; --n, ++engine_.next) {
      if (!lost) live_.emplace_back(engine_.next, engine_.Payload(engine_.next));
    }
  }
  void Restart() {
    // What the socket had received comes before the news that it is gone.
    Deliver(live_.size());
    feed_.OnDisconnected(now_);
    ++engine_.process;
    engine_.next = 0;
    Tick(absl::Milliseconds(random_.Below(3000)));
    Publish(random_.Below(3), /*lost=*/true);
    feed_.OnConnected(now_);
  }
  void Deliver(std::size_t n) {
    for (; n > 0; --n) {
      auto [seq, payload] = std::move(live_.front());
      live_.pop_front();
      feed_.OnMessage(seq, std::move(payload), now_);
    }
  }
  void Answer(bool faults) {
    if (!request_.has_value() || (faults && random_.Below(8) == 0)) return;
    const auto [from, attempt] = *request_;
    const bool drops = faults && random_.Below(4) == 0;
    for (std::uint64_t seq = std::max(from, engine_.OldestKept()); seq < engine_.next; ++seq) {
      if (drops && random_.Below(5) == 0) continue;
      feed_.OnReplayMessage(attempt, seq, engine_.Payload(seq), now_);
    }
    if (!faults || random_.Below(8) != 0) feed_.OnReplayEnd(attempt, now_);
  }
  void Tick(absl::Duration by) {
    now_ += by;
    feed_.Tick(now_);
  }

  Random random_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  Engine engine_;
  std::deque<std::pair<std::uint64_t, std::string>> live_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> request_;
  std::vector<std::uint64_t> applied_;
  std::optional<int> applied_process_;
  int losses_ = 0;
  bool loss_announced_ = false;
  bool failed_ = false;
  FeedSequencer feed_;
};

TEST(FeedChaosTest, WithReplayItAlwaysCatchesUp) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    Chaos chaos(seed, /*replay=*/true);
    for (int step = 0; step < 120; ++step) {
      chaos.Step();
      chaos.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    chaos.Settle();
    chaos.Check();
    ASSERT_TRUE(chaos.AtRest()) << "last " << chaos.feed().position().last_seq.value_or(0);
  }
}

TEST(FeedChaosTest, WithoutReplayNothingIsMixedUp) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    Chaos chaos(seed, /*replay=*/false);
    for (int step = 0; step < 120; ++step) {
      chaos.Step();
      chaos.Check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(chaos.feed().counts().replays, 0u);
  }
}

}  // namespace
}  // namespace warmpath
