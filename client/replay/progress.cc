#include "client/replay/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/base/clock.h"

namespace warmpath::replay {

ProgressBar::ProgressBar(std::string title, std::size_t total)
    : title_(std::move(title)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(SystemClock().Now()),
      last_(absl::InfinitePast()) {}

void ProgressBar::Update(std::size_t done, std::size_t errors) {
  const absl::Time now = SystemClock().Now();
  const absl::Duration interval = terminal_ ? absl::Milliseconds(200) : absl::Seconds(10);
  if (now - last_ < interval && done < total_) return;
  last_ = now;
  const double share = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
  const double elapsed = absl::ToDoubleSeconds(now - start_);
  if (!terminal_) {
    std::fprintf(stderr, "%s: %zu of %zu requests, %zu errors, %.0f s\n", title_.c_str(), done,
                 total_, errors, elapsed);
    return;
  }
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(share * kWidth);
  const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                          std::string(static_cast<std::size_t>(kWidth - filled), '.');
  std::fprintf(stderr, "\r%s [%s] %3.0f %%  %zu/%zu  %zu errors  %.0f s ", title_.c_str(),
               bar.c_str(), share * 100, done, total_, errors, elapsed);
}

void ProgressBar::Finish() {
  if (terminal_) std::fputc('\n', stderr);
}

}  // namespace warmpath::replay
