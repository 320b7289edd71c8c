// What each model name means: a pool by its base name or an alias, or an adapter of a pool.
#ifndef WARMPATH_CORE_FLEET_MODEL_NAMES_H_
#define WARMPATH_CORE_FLEET_MODEL_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/strings.h"
#include "core/fleet/fleet.h"

namespace warmpath {

// The names that one worker brings to its pool, each once.
struct WorkerNames {
  std::shared_ptr<Pool> pool;
  std::vector<std::string> aliases;
  std::vector<std::string> loras;
};

// One name means one thing. Aliases and adapters belong to the workers that registered them: they
// go with the last of them. While all of them are LOST a name still resolves, so that callers see
// "no ready worker" and not "unknown model", but a newcomer may claim it.
//
// Thread-safe; its mutex is a leaf, held for look-ups only. Changes come from one thread at a time
// (under the registry's mutex), so that Check stays true until Add.
class ModelNames {
 public:
  static constexpr std::size_t kMaxNames = 100'000;

  void AddPool(std::shared_ptr<Pool> pool, const std::vector<std::string>& aliases);

  // REQUIRES: no worker brings names to it any more, and no alias is configured.
  void RemovePool(const Pool& pool);

  // The pool that a registration of `model` joins; null when a pool of that name may be made.
  // FAILED_PRECONDITION when the name is an adapter's. `own`: what the worker brought before, if
  // it is known; it never stands in its own way.
  absl::StatusOr<std::shared_ptr<Pool>> PoolForModel(std::string_view model,
                                                     const WorkerNames* own) const;

  // Whether a worker may bring these names. FAILED_PRECONDITION naming the name and what it stands
  // for; RESOURCE_EXHAUSTED at kMaxNames. names.pool is null for a pool that is to be made.
  absl::Status Check(const WorkerNames& names, std::string_view model,
                     const WorkerNames* own) const;

  void Add(const WorkerNames& names);
  void Remove(const WorkerNames& names, bool lost);
  // The worker is LOST: its names may be claimed by others.
  void MarkLost(const WorkerNames& names);

  absl::StatusOr<ModelRef> Resolve(std::string_view model) const;

 private:
  enum class Kind : std::uint8_t { kBase, kAlias, kLora };
  struct Meaning {
    std::shared_ptr<Pool> pool;
    Kind kind = Kind::kBase;
    bool pinned = false;        // a base name, or an alias from the configuration
    std::uint32_t holders = 0;  // workers that brought it
    std::uint32_t live = 0;     // of these, not LOST
  };

  static std::string Describe(const Meaning& meaning);
  static bool Brings(const WorkerNames* own, const Meaning& meaning, std::string_view name);
  static bool Claimable(const Meaning& meaning, const WorkerNames* own, std::string_view name);
  absl::Status CheckOne(std::string_view field, const std::string& name, Kind kind,
                        const Pool* pool, const WorkerNames* own) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddOne(const std::string& name, Kind kind, const std::shared_ptr<Pool>& pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when the name has another meaning by now.
  Meaning* Find(const std::string& name, Kind kind, const Pool* pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveOne(const std::string& name, Kind kind, const Pool* pool, bool lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  StringMap<Meaning> names_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> base_names_ ABSL_GUARDED_BY(mu_);  // for the message of Resolve
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_MODEL_NAMES_H_
