// Any bytes as a KV-event payload: decoded, applied, saved and restored. Whatever comes out must
// be consistent with itself.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/agent/canonical/canonical.h"
#include "client/agent/events/vllm_decoder.h"

namespace {

// Not assert: must also hold in optimised builds.
void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckDigests(const warmpath::Canonical& canonical) {
  for (const warmpath::Tier tier : warmpath::kAllTiers) {
    warmpath::SetDigest digest;
    for (const warmpath::ChainHash hash : canonical.Held(tier)) digest.Insert(hash);
    Require(digest == canonical.digest(tier));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view payload(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<warmpath::EngineBatch> batch = warmpath::DecodeKvEvents(payload);
  if (!batch.ok()) return 0;

  warmpath::CanonicalOptions options;
  options.routing_block = 8;
  options.max_blocks = 256;
  options.max_orphans = 32;
  options.capacity[0] = 16;
  warmpath::Canonical canonical(options);
  canonical.Apply(*batch);
  CheckDigests(canonical);
  canonical.MarkLoss(warmpath::LossKind::kGap);
  canonical.Apply(*batch);
  CheckDigests(canonical);
  Require(canonical.blocks() <= options.max_blocks);
  Require(canonical.orphans() <= options.max_orphans);

  warmpath::Canonical restored(options);
  Require(restored.Restore(canonical.Serialize()).ok());
  CheckDigests(restored);
  for (const warmpath::Tier tier : warmpath::kAllTiers) {
    Require(restored.digest(tier) == canonical.digest(tier));
  }

  warmpath::EngineBatch cleared;
  cleared.events.emplace_back(warmpath::AllBlocksCleared{});
  canonical.Apply(cleared);
  Require(canonical.digest(warmpath::Tier::kGpu).count == 0);
  return 0;
}
