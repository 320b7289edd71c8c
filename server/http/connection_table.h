// The open connections of an HTTP server, until when each may go on as it does, and which of them
// have no request, the longest idle first. A client that sends its request byte by byte, or takes
// the answer so, is cut off however lively it seems.
#ifndef WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_
#define WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>

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
    // Under the table's lock.
    bool idle_ = false;
    std::list<Connection*>::iterator place_;  // in idle_, while it is
    std::atomic<std::int64_t> deadline_ns_{0};
  };

  ConnectionTable() = default;
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;
  // REQUIRES: every connection was removed.
  ~ConnectionTable() = default;

  // `fd` must stay open until Remove. The table owns what it returns, which is idle.
  Connection* Add(int fd, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void Remove(Connection* connection) ABSL_LOCKS_EXCLUDED(mu_);

  // It has a request: headers have come whole, and the answer is not sent yet.
  void SetBusy(Connection* connection) ABSL_LOCKS_EXCLUDED(mu_);
  // It may send another one until `deadline`.
  void SetIdle(Connection* connection, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // Shuts the socket of the connection that has been idle for longest, so that a newcomer has its
  // place. False when all are busy. O(1).
  bool CloseLongestIdle() ABSL_LOCKS_EXCLUDED(mu_);

  // Shuts the sockets of those whose deadline has passed; their owner then sees them end. Returns
  // how many. O(connections).
  std::size_t CloseOverdue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  std::size_t size() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Enlist(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Delist(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  absl::flat_hash_set<Connection*> connections_ ABSL_GUARDED_BY(mu_);
  std::list<Connection*> idle_ ABSL_GUARDED_BY(mu_);  // longest idle first
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_CONNECTION_TABLE_H_
