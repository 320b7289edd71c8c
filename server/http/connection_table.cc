#include "server/http/connection_table.h"

#include <sys/socket.h>

#include <limits>

namespace warmpath {

ConnectionTable::Connection* ConnectionTable::Add(int fd, absl::Time deadline) {
  auto* connection = new Connection(fd, deadline);
  absl::MutexLock lock(&mu_);
  connections_.insert(connection);
  Enlist(connection);
  return connection;
}

void ConnectionTable::Enlist(Connection* connection) {
  if (connection->idle_) return;
  connection->idle_ = true;
  connection->place_ = idle_.insert(idle_.end(), connection);
}

void ConnectionTable::Delist(Connection* connection) {
  if (!connection->idle_) return;
  connection->idle_ = false;
  idle_.erase(connection->place_);
}

void ConnectionTable::SetBusy(Connection* connection) {
  absl::MutexLock lock(&mu_);
  Delist(connection);
}

void ConnectionTable::SetIdle(Connection* connection, absl::Time deadline) {
  connection->SetDeadline(deadline);
  absl::MutexLock lock(&mu_);
  Enlist(connection);
}

bool ConnectionTable::CloseLongestIdle() {
  absl::MutexLock lock(&mu_);
  if (idle_.empty()) return false;
  Connection* const connection = idle_.front();
  Delist(connection);
  shutdown(connection->fd_, SHUT_RDWR);
  return true;
}

void ConnectionTable::Remove(Connection* connection) {
  {
    absl::MutexLock lock(&mu_);
    connections_.erase(connection);
    Delist(connection);
  }
  delete connection;
}

std::size_t ConnectionTable::CloseOverdue(absl::Time now) {
  const std::int64_t now_ns = absl::ToUnixNanos(now);
  std::size_t closed = 0;
  absl::MutexLock lock(&mu_);
  for (Connection* connection : connections_) {
    if (connection->deadline_ns_.load(std::memory_order_relaxed) > now_ns) continue;
    // Under the lock, so that Remove can not let the descriptor be closed and used again meanwhile.
    shutdown(connection->fd_, SHUT_RDWR);
    connection->deadline_ns_.store(std::numeric_limits<std::int64_t>::max(),
                                   std::memory_order_relaxed);
    Delist(connection);
    ++closed;
  }
  return closed;
}

std::size_t ConnectionTable::size() const {
  absl::MutexLock lock(&mu_);
  return connections_.size();
}

}  // namespace warmpath
