// The state file of one rank: what it takes to go on after a restart of the agent without asking
// the engine for everything. A journal: one record per applied batch, now and then rewritten as
// one snapshot. Holds prompt tokens, hence mode 0600.
//
// A record that is torn or fails its checksum ends the file there: what comes before is a true,
// if older, state. No fsync: it survives the death of the process, and after a machine's death
// the engine is new anyway.
//
// Not thread-safe; confined to its rank's feed.
#ifndef WARMPATH_CLIENT_AGENT_FEED_STATE_JOURNAL_H_
#define WARMPATH_CLIENT_AGENT_FEED_STATE_JOURNAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/agent/canonical/canonical.h"
#include "client/agent/feed/feed_sequencer.h"
#include "core/base/ids.h"
#include "core/base/random.h"

namespace warmpath {

using AgentInstance = std::array<std::uint8_t, 16>;

// Reads 16 bytes from `path`, or draws them and creates the file (mode 0600). UNAVAILABLE when it
// can be neither read nor written, INVALID_ARGUMENT when it holds something else; both name the
// path.
absl::StatusOr<AgentInstance> LoadOrCreateAgentInstance(const std::string& path, Random& random);

// What a journal file held.
struct RestoredState {
  Epoch epoch = 0;
  AgentInstance agent_instance{};
  FeedPosition position;
  // Why the tail of the file was left out; empty when it was whole.
  std::string truncated;
  std::uint64_t batches = 0;  // replayed on top of the snapshot
};

class StateJournal {
 public:
  // Reads `path` into *canonical (which must be fresh). NOT_FOUND: no file. Any other error says
  // why the file is of no use; *canonical is then Clear()ed.
  static absl::StatusOr<RestoredState> Load(const std::string& path, Canonical* canonical);

  // Takes over `path`: writes the current state as a new file in its place, to be appended to.
  static absl::StatusOr<std::unique_ptr<StateJournal>> Open(const std::string& path,
                                                            const AgentInstance& instance,
                                                            Epoch epoch,
                                                            const FeedPosition& position,
                                                            const Canonical& canonical);
  ~StateJournal();
  StateJournal(const StateJournal&) = delete;
  StateJournal& operator=(const StateJournal&) = delete;

  // Each appends one record in one write. After an error the file may lack it: Reset to go on.
  absl::Status AppendBatch(std::uint64_t seq, std::uint64_t payload_hash, std::string_view payload);
  absl::Status AppendLoss(LossKind kind);
  absl::Status AppendProcessStart(double unix_seconds);

  // Whether the file has grown enough over its last snapshot to be rewritten.
  bool WantsCompaction() const;

  // Rewrites the file from the given state: compaction, a new epoch, or recovery from an error.
  // Through a temporary file and rename: a crash leaves the old or the new one.
  absl::Status Reset(Epoch epoch, const FeedPosition& position, const Canonical& canonical);

  std::size_t bytes() const { return bytes_; }

 private:
  StateJournal(std::string path, const AgentInstance& instance);
  absl::Status Append(std::uint8_t type, std::string_view head, std::string_view body);

  const std::string path_;
  const AgentInstance instance_;
  int fd_ = -1;
  bool broken_ = false;
  std::size_t bytes_ = 0;
  std::size_t snapshot_bytes_ = 0;
  std::string scratch_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_FEED_STATE_JOURNAL_H_
