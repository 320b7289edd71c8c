#include "core/fleet/target_books.h"

#include <algorithm>
#include <utility>

namespace warmpath {
namespace {

// First tokens that come within so short a time belong to one engine step.
constexpr double kSameStepSeconds = 0.005;
constexpr double kSameStepShare = 0.2;  // of the request's own P
// So many are taken together at most: where P is believed several times too long, each first token
// seems to come too soon to have had a step of its own, and nothing would ever be learned.
constexpr std::uint32_t kMostInOneSpan = 8;
constexpr double kSilentWeight = 0.02;  // of one finish in the share of silent ones

}  // namespace

TargetBooks::TargetBooks(ReservationTable* table, std::uint32_t block_size, bool infer_first_tokens)
    : table_(*table), block_size_(block_size), infer_first_tokens_(infer_first_tokens) {}

void TargetBooks::Add(TargetId target, bool has_events, std::uint64_t predicted_bound) {
  if (target >= lines_.size()) {
    lines_.resize(target + 1);
    books_.resize(target + 1);
  }
  lines_[target] = LoadLine{.in_use = true};
  books_[target] = Book{.has_events = has_events, .predicted_bound = predicted_bound};
  ++target_count_;
}

void TargetBooks::Remove(TargetId target, absl::Time now) {
  lines_[target] = LoadLine();
  books_[target] = Book();
  --target_count_;
  SetBusy(now);
}

void TargetBooks::Attach(Place place, absl::Time now) {
  OpenReservation& entry = table_[place];
  const TargetId target = entry.reservation.target;
  Book& book = books_[target];
  LoadLine& line = lines_[target];
  book.open.PushBack(table_, place);
  book.history.OnOpen(now);
  line.open = book.open.size();
  line.loose_tokens += entry.loose_tokens;
  if (entry.reservation.expected_output > 0) {
    line.expected_output += entry.reservation.expected_output;
    ++line.announced;
  }
  if (entry.reservation.first_token_seen) return;
  entry.drained = false;
  DrainSilent(target, now);
  if (book.pending.empty()) {
    line.anchor_ns = absl::ToUnixNanos(now);
    line.head_ns = entry.prefill_ns;
    ++busy_count_;
    SetBusy(now);
  }
  book.pending.PushBack(table_, place);
  line.pending_ns += entry.prefill_ns;
}

void TargetBooks::Detach(Place place, absl::Time now) {
  const OpenReservation& entry = table_[place];
  const TargetId target = entry.reservation.target;
  Book& book = books_[target];
  LoadLine& line = lines_[target];
  DrainSilent(target, now);
  if (!entry.reservation.first_token_seen) LeavePending(place, now);
  book.open.Erase(table_, place);
  book.history.OnClose(now);
  line.open = book.open.size();
  line.loose_tokens -= entry.loose_tokens;
  if (entry.reservation.expected_output > 0) {
    line.expected_output -= entry.reservation.expected_output;
    --line.announced;
  }
}

std::optional<PrefillSpan> TargetBooks::FirstToken(Place place, absl::Time now) {
  Reservation& r = table_[place].reservation;
  r.first_token_seen = true;
  if (table_[place].drained) return std::nullopt;  // when it left was a guess: nothing to learn
  Book& book = books_[r.target];
  LoadLine& line = lines_[r.target];
  const absl::Time began = std::max(absl::FromUnixNanos(line.anchor_ns), r.picked_at);
  const double since_last = absl::ToDoubleSeconds(now - book.span_end);
  LeavePending(place, now);
  line.anchor_ns = absl::ToUnixNanos(now);
  book.span_end = now;
  if (book.span.has_value() && book.span_requests < kMostInOneSpan &&
      since_last < std::max(kSameStepSeconds, kSameStepShare * r.prefill_s)) {
    ++book.span_requests;
    book.span->seconds += since_last;
    book.span->work += r.prefill_work;
    return std::nullopt;
  }
  const PrefillSpan span{.seconds = absl::ToDoubleSeconds(now - began), .work = r.prefill_work};
  book.span_requests = 1;
  return std::exchange(book.span, span);
}

std::optional<absl::Time> TargetBooks::OnEngineLoad(TargetId target, const EngineLoad& load) {
  Book& book = books_[target];
  book.reports.OnReport(load, book.open.size(), book.history);
  lines_[target].external = book.reports.external();
  return book.reports.EmptySince();
}

void TargetBooks::ForgetEngine(TargetId target) {
  books_[target].reports = EngineReports();
  books_[target].span.reset();
  lines_[target].external = 0;
}

void TargetBooks::OnFinish(const Reservation& reservation,
                           std::optional<std::uint64_t> output_tokens, absl::Time now) {
  const auto finishes = static_cast<double>(averages_.finished() + 1);
  const double weight = std::max(kSilentWeight, 1.0 / finishes);
  silent_share_ += weight * ((reservation.first_token_seen ? 0.0 : 1.0) - silent_share_);
  averages_.OnFinish(output_tokens, absl::ToDoubleSeconds(now - reservation.picked_at));
}

void TargetBooks::Tick(absl::Time now) {
  if (silent()) {
    for (TargetId target = 0; target < lines_.size(); ++target) DrainSilent(target, now);
  }
  SetBusy(now);
}

LoadsNow TargetBooks::Loads(absl::Time now) const {
  const PoolAverages averages = averages_.Get();
  return LoadsNow(lines_, {.now_ns = absl::ToUnixNanos(now),
                           .silent = silent(),
                           .cold = averages.cold(),
                           .output_tokens = averages.output_tokens,
                           .external_s = averages.prefill_s,
                           .block_size = block_size_});
}

// Most of those that finish say nothing of their first tokens: the clock has to stand in.
bool TargetBooks::silent() const {
  return infer_first_tokens_ && silent_share_ > 0.5 &&
         averages_.finished() >= PoolAverages::kWarmAfter;
}

void TargetBooks::SetHead(TargetId target) {
  const Place head = books_[target].pending.front();
  lines_[target].head_ns = head == 0 ? 0 : table_[head].prefill_ns;
}

void TargetBooks::DrainSilent(TargetId target, absl::Time now) {
  Book& book = books_[target];
  if (book.pending.empty() || !silent()) return;
  LoadLine& line = lines_[target];
  const std::int64_t now_ns = absl::ToUnixNanos(now);
  while (!book.pending.empty() && now_ns - line.anchor_ns >= line.head_ns) {
    const Place head = book.pending.front();
    book.pending.Erase(table_, head);
    table_[head].drained = true;
    line.pending_ns -= line.head_ns;
    line.anchor_ns += line.head_ns;
    SetHead(target);
  }
  if (!book.pending.empty()) return;
  --busy_count_;
  SetBusy(now);
}

void TargetBooks::LeavePending(Place place, absl::Time now) {
  const OpenReservation& entry = table_[place];
  if (entry.drained) return;
  const TargetId target = entry.reservation.target;
  Book& book = books_[target];
  LoadLine& line = lines_[target];
  const bool was_head = book.pending.front() == place;
  book.pending.Erase(table_, place);
  line.pending_ns -= entry.prefill_ns;
  if (was_head) {
    // Whoever comes to the head begins now.
    line.anchor_ns = absl::ToUnixNanos(now);
    SetHead(target);
  }
  if (!book.pending.empty()) return;
  --busy_count_;
  SetBusy(now);
}

}  // namespace warmpath
