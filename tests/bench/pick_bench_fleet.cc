#include <algorithm>
#include <string>
#include <utility>

#include "core/base/random.h"
#include "core/hashing/chain_hash.h"
#include "core/routing/picker.h"
#include "tests/bench/paired_rounds.h"
#include "tests/bench/pick_bench.h"
#include "tests/bench/played_worker.h"

namespace warmpath::bench {
namespace {

constexpr std::size_t kFamilies = 64;

// Prompts of one family start with the same tokens, which its workers hold: about three quarters
// of the prompt is a hit.
std::vector<TokenId> Prompt(std::size_t family, std::uint64_t variant, std::size_t tokens) {
  std::vector<TokenId> ids(tokens);
  Random head(family + 1);
  Random tail(variant * 7919 + 13);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<TokenId>((i < tokens * 3 / 4 ? head : tail).Below(150'000));
  }
  return ids;
}

void Apply(PlayedWorker& worker, const FeedUpdate& update) {
  if (const absl::Status status = worker.feed->OnUpdate(worker.session, update); !status.ok()) {
    Die(status.ToString());
  }
}

// One worker that holds `share` blocks: chains of its families, and filler.
PlayedWorker AddFullWorker(App& app, int number, const Settings& settings) {
  PlayedWorker worker = AddWorker(app, number, settings.block_size, /*has_events=*/true);
  std::vector<ChainHash> hashes;
  for (std::size_t family = 0; family < kFamilies; ++family) {
    if ((family + static_cast<std::size_t>(number)) % 8 != 0) continue;
    std::vector<TokenId> ids = Prompt(family, 0, settings.tokens);
    ids.resize(ids.size() * 3 / 4);
    AppendChain(kHashSeed, settings.block_size, ids, {}, &hashes);
  }
  Random random(static_cast<std::uint64_t>(number) + 1000);
  const std::size_t share = settings.blocks / static_cast<std::size_t>(settings.workers);
  while (hashes.size() < share) hashes.push_back(random());
  std::uint64_t seq = 0;
  std::uint64_t all = 0;
  for (const ChainHash hash : hashes) all ^= hash;
  Apply(worker, SnapshotBeginUpdate{.delta_seq = ++seq, .epoch = 1});
  for (std::size_t i = 0; i < hashes.size(); i += kMaxHashesPerMessage) {
    const std::size_t count = std::min(kMaxHashesPerMessage, hashes.size() - i);
    Apply(worker, SnapshotChunkUpdate{.delta_seq = ++seq, .hashes = {hashes.data() + i, count}});
  }
  Apply(worker, SnapshotEndUpdate{.delta_seq = ++seq,
                                  .engine_seq = 1,
                                  .count = hashes.size(),
                                  .xor_of_hashes = all,
                                  .no_holes = true});  // the random ones are in no prompt's chain
  return worker;
}

}  // namespace

v1::PickRequest MakeRequest(std::uint64_t number, const Settings& settings) {
  v1::PickRequest request;
  request.set_model(std::string(kModel));
  const std::vector<TokenId> ids = Prompt(number % kFamilies, number, settings.tokens);
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

void FillOutcome(std::uint64_t reservation, v1::OutcomeRequest* outcome) {
  outcome->set_reservation_id(reservation);
  outcome->set_kind(v1::OUTCOME_KIND_FINISHED);
  outcome->set_output_tokens(100);
}

std::vector<PlayedWorker> AddWorkers(App& app, const Settings& settings) {
  std::vector<PlayedWorker> workers;
  for (int i = 0; i < settings.workers; ++i) workers.push_back(AddFullWorker(app, i, settings));
  return workers;
}

void OpenReservations(App& app, const Settings& settings) {
  const auto model = app.fleet().Resolve(kModel);
  if (!model.ok()) Die(model.status().ToString());
  for (int i = 0; i < settings.open; ++i) {
    const std::vector<TokenId> ids =
        Prompt(static_cast<std::size_t>(i) % kFamilies, 1'000'000u + static_cast<unsigned>(i), 600);
    std::vector<ChainHash> chain;
    AppendChain(kHashSeed, settings.block_size, ids, {}, &chain);
    Query query;
    query.chain = chain;
    query.prompt_tokens = ids.size();
    query.lease = absl::Hours(1);
    const auto decision = app.picker().Pick(*model->pool, query);
    if (!decision.ok()) Die(decision.status().ToString());
  }
}

}  // namespace warmpath::bench
