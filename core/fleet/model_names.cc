#include "core/fleet/model_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fleet/pool.h"

namespace warmpath {
namespace {

bool Contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::string ModelNames::Describe(const Meaning& meaning) {
  switch (meaning.kind) {
    case Kind::kBase:
      return "the name of a pool";
    case Kind::kAlias:
      return absl::StrCat("an alias of pool '", meaning.pool->name(), "'");
    case Kind::kLora:
      return absl::StrCat("an adapter of pool '", meaning.pool->name(), "'");
  }
  return "";
}

bool ModelNames::Brings(const WorkerNames* own, const Meaning& meaning, std::string_view name) {
  if (own == nullptr || own->pool != meaning.pool) return false;
  return (meaning.kind == Kind::kAlias && Contains(own->aliases, name)) ||
         (meaning.kind == Kind::kLora && Contains(own->loras, name));
}

bool ModelNames::Claimable(const Meaning& meaning, const WorkerNames* own, std::string_view name) {
  if (meaning.pinned) return false;
  return meaning.live == 0 || (meaning.live == 1 && Brings(own, meaning, name));
}

void ModelNames::AddPool(std::shared_ptr<Pool> pool, const std::vector<std::string>& aliases) {
  absl::MutexLock lock(&mu_);
  base_names_.insert(pool->name());
  names_[pool->name()] = {.pool = pool, .kind = Kind::kBase, .pinned = true};
  for (const std::string& alias : aliases) {
    names_[alias] = {.pool = pool, .kind = Kind::kAlias, .pinned = true};
  }
}

void ModelNames::RemovePool(const Pool& pool) {
  absl::MutexLock lock(&mu_);
  base_names_.erase(pool.name());
  names_.erase(pool.name());
}

absl::StatusOr<std::shared_ptr<Pool>> ModelNames::PoolForModel(std::string_view model,
                                                               const WorkerNames* own) const {
  absl::MutexLock lock(&mu_);
  const auto it = names_.find(model);
  if (it == names_.end() || Claimable(it->second, own, model)) return std::shared_ptr<Pool>();
  if (it->second.kind == Kind::kLora) {
    return absl::FailedPreconditionError(
        absl::StrCat("model: '", ToAbsl(model), "' is ", Describe(it->second),
                     "; register the base model's name and list the adapter in loras"));
  }
  return it->second.pool;
}

absl::Status ModelNames::CheckOne(std::string_view field, const std::string& name, Kind kind,
                                  const Pool* pool, const WorkerNames* own) const {
  const auto it = names_.find(name);
  if (it == names_.end() || Claimable(it->second, own, name)) return absl::OkStatus();
  const Meaning& known = it->second;
  // A base name that some worker lists as an alias of the same pool is no conflict.
  const bool same_kind = (known.kind == Kind::kLora) == (kind == Kind::kLora);
  if (known.pool.get() == pool && same_kind) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(ToAbsl(field), ": '", name, "' is ", Describe(known),
                   " already; a name can mean one thing only: rename one of the two"));
}

absl::Status ModelNames::Check(const WorkerNames& names, std::string_view model,
                               const WorkerNames* own) const {
  absl::MutexLock lock(&mu_);
  if (names_.size() + names.aliases.size() + names.loras.size() > kMaxNames) {
    return absl::ResourceExhaustedError(absl::StrCat("loras: the router knows ", names_.size(),
                                                     " model names; at most ", kMaxNames));
  }
  for (const std::string& alias : names.aliases) {
    if (alias == model) continue;
    WARMPATH_RETURN_IF_ERROR(CheckOne("aliases", alias, Kind::kAlias, names.pool.get(), own));
  }
  for (const std::string& lora : names.loras) {
    WARMPATH_RETURN_IF_ERROR(CheckOne("loras", lora, Kind::kLora, names.pool.get(), own));
  }
  return absl::OkStatus();
}

void ModelNames::AddOne(const std::string& name, Kind kind, const std::shared_ptr<Pool>& pool) {
  const auto [it, inserted] = names_.try_emplace(name);
  Meaning& meaning = it->second;
  if (meaning.pool == pool && meaning.kind == Kind::kBase) return;
  if (inserted || meaning.pool != pool || meaning.kind != kind) {
    meaning = {.pool = pool, .kind = kind};
  }
  ++meaning.holders;
  ++meaning.live;
}

void ModelNames::Add(const WorkerNames& names) {
  absl::MutexLock lock(&mu_);
  for (const std::string& alias : names.aliases) AddOne(alias, Kind::kAlias, names.pool);
  for (const std::string& lora : names.loras) AddOne(lora, Kind::kLora, names.pool);
}

ModelNames::Meaning* ModelNames::Find(const std::string& name, Kind kind, const Pool* pool) {
  const auto it = names_.find(name);
  if (it == names_.end() || it->second.pool.get() != pool || it->second.kind != kind) {
    return nullptr;
  }
  return &it->second;
}

void ModelNames::RemoveOne(const std::string& name, Kind kind, const Pool* pool, bool lost) {
  Meaning* meaning = Find(name, kind, pool);
  if (meaning == nullptr || meaning->holders == 0) return;
  --meaning->holders;
  if (!lost) --meaning->live;
  if (meaning->holders == 0 && !meaning->pinned) names_.erase(name);
}

void ModelNames::Remove(const WorkerNames& names, bool lost) {
  absl::MutexLock lock(&mu_);
  for (const std::string& alias : names.aliases) {
    RemoveOne(alias, Kind::kAlias, names.pool.get(), lost);
  }
  for (const std::string& lora : names.loras) {
    RemoveOne(lora, Kind::kLora, names.pool.get(), lost);
  }
}

void ModelNames::MarkLost(const WorkerNames& names) {
  absl::MutexLock lock(&mu_);
  for (const std::string& alias : names.aliases) {
    if (Meaning* meaning = Find(alias, Kind::kAlias, names.pool.get())) --meaning->live;
  }
  for (const std::string& lora : names.loras) {
    if (Meaning* meaning = Find(lora, Kind::kLora, names.pool.get())) --meaning->live;
  }
}

absl::StatusOr<ModelRef> ModelNames::Resolve(std::string_view model) const {
  absl::MutexLock lock(&mu_);
  const auto it = names_.find(model);
  if (it != names_.end()) {
    ModelRef ref{.pool = it->second.pool, .lora = std::nullopt};
    if (it->second.kind == Kind::kLora) ref.lora = it->first;
    return ref;
  }
  constexpr std::size_t kShown = 10;
  std::string list = base_names_.empty() ? "none" : "";
  std::size_t shown = 0;
  for (const std::string& name : base_names_) {
    if (shown == kShown) break;
    absl::StrAppend(&list, shown++ == 0 ? "" : ", ", name);
  }
  if (base_names_.size() > kShown) {
    absl::StrAppend(&list, " and ", base_names_.size() - kShown, " more");
  }
  constexpr std::size_t kEchoed = 128;
  return absl::NotFoundError(absl::StrCat("model: '", ToAbsl(model.substr(0, kEchoed)),
                                          "' is not served here; known models: ", list));
}

}  // namespace warmpath
