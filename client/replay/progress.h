// A progress bar on a terminal; on anything else a line every few seconds.
#ifndef WARMPATH_CLIENT_REPLAY_PROGRESS_H_
#define WARMPATH_CLIENT_REPLAY_PROGRESS_H_

#include <cstddef>
#include <string>

#include "absl/time/time.h"

namespace warmpath::replay {

// Writes to stderr. Not thread-safe.
class ProgressBar {
 public:
  ProgressBar(std::string title, std::size_t total);
  void Update(std::size_t done, std::size_t errors);
  // Ends the line. Called once.
  void Finish();

 private:
  const std::string title_;
  const std::size_t total_;
  const bool terminal_;
  const absl::Time start_;
  absl::Time last_;
};

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_PROGRESS_H_
