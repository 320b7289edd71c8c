// The open connections of an HTTP server and until when each may go on as it does. A client that
// sends its request byte by byte, or takes the answer so, is cut off however lively it seems.
#ifndef WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_
#define WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace warmpath {

// Thread-safe.
class ConnectionTable {
 public:
  class Connection {
   public:
    void SetDeadline(absl::Time when) {
      deadline_ns_.store(absl::ToUnixNanos(when), std::memory_order_relaxed);
    }

   private:
    friend class ConnectionTable;
    Connection(int fd, absl::Time deadline) : fd_(fd) { SetDeadline(deadline); }

    const int fd_;
    std::atomic<std::int64_t> deadline_ns_{0};
  };

  ConnectionTable() = default;
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;
  // REQUIRES: every connection was removed.
  ~ConnectionTable() = default;

  // `fd` must stay open until Remove. The table owns what it returns.
  Connection* Add(int fd, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(Connection* connection) ABSL_LOCKS_EXCLUDED(mu_);

  // Shuts the sockets of those whose deadline has passed; their owner then sees them end. Returns
  // how many. O(connections).
  std::size_t CloseOverdue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  std::size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_set<Connection*> connections_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_
