#include "client/ctl/commands.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ctl/format.h"
#include "client/lib/channel.h"
#include "core/base/json_quote.h"
#include "google/protobuf/util/json_util.h"

namespace warmpath::ctl {
namespace {

using client::FromGrpc;

absl::Status PrintJson(const Context& context, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("the answer can not be shown as JSON: ", std::string(status.message())));
  }
  *context.out << json;
  return absl::OkStatus();
}

// "FRESHNESS_CAUSE_AGENT_GONE" -> "agent_gone".
std::string Short(const std::string& name, std::string_view prefix) {
  std::string out = name.substr(std::min(prefix.size(), name.size()));
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  return out;
}

std::string FreshnessCell(v1::Freshness freshness, const std::vector<std::string>& causes) {
  // The prefix of "FRESHNESS_EXACT"; states are shouted, causes are not.
  std::string out = v1::Freshness_Name(freshness).substr(10);
  if (!causes.empty()) absl::StrAppend(&out, "(", absl::StrJoin(causes, ","), ")");
  return out;
}

std::string CauseName(v1::FreshnessCause cause) {
  return Short(v1::FreshnessCause_Name(cause), "FRESHNESS_CAUSE_");
}

void PrintWorkers(const v1::ListWorkersResponse& response, std::ostream& out) {
  Table table({"POOL", "WORKER", "RANK", "ADDRESS", "STATE", "KNOWLEDGE", "BLOCKS", "INFLIGHT",
               "WAIT ms", "KV tokens", "KV cap", "tok/s"});
  std::vector<std::string> remedies;
  for (const auto& worker : response.workers()) {
    for (const auto& target : worker.targets()) {
      std::uint64_t blocks = 0;
      for (const auto& tier : target.blocks()) blocks += tier.blocks();
      std::vector<std::string> causes;
      for (const auto& cause : target.causes()) {
        causes.push_back(CauseName(cause.cause()));
        remedies.push_back(absl::StrCat(worker.worker_id(), "/", target.rank(), " ", causes.back(),
                                        ": ", cause.remedy()));
      }
      std::string inflight = absl::StrCat(target.inflight());
      if (target.external_inflight() > 0)
        absl::StrAppend(&inflight, "+", target.external_inflight());
      table.AddRow(
          {worker.pool(), worker.worker_id(), absl::StrCat(target.rank()), target.address(),
           Short(v1::Lifecycle_Name(target.lifecycle()), "LIFECYCLE_"),
           FreshnessCell(target.freshness(), causes), absl::StrCat(blocks), inflight,
           Fixed(target.wait_ms(), 1), absl::StrCat(target.kv_tokens()),
           target.kv_capacity_tokens() == 0 ? "-" : absl::StrCat(target.kv_capacity_tokens()),
           Fixed(target.prefill_tokens_per_s(), 0)});
    }
  }
  out << table.Render();
  if (response.workers().empty()) out << "no workers have registered\n";
  for (const std::string& remedy : remedies) out << remedy << "\n";
}

void PrintCandidates(const v1::PickResponse& response, std::ostream& out) {
  Table table({"TARGET", "ADDRESS", "CACHED", "UNCACHED", "WAIT ms", "COPY ms", "PREFILL ms",
               "POOL ms", "STALL ms", "KV ms", "KVWAIT ms", "TENANT ms", "COST ms", "KNOWLEDGE",
               "EXCLUDED"});
  for (const auto& c : response.explanation().candidates()) {
    std::vector<std::string> causes;
    if (c.freshness_cause() != v1::FRESHNESS_CAUSE_UNSPECIFIED) {
      causes.push_back(CauseName(c.freshness_cause()));
    }
    table.AddRow({absl::StrCat(c.target().worker_id(), "/", c.target().rank()), c.address(),
                  absl::StrCat(c.cached_tokens()), absl::StrCat(c.uncached_tokens()),
                  Fixed(c.wait_ms(), 1), Fixed(c.copy_ms(), 1), Fixed(c.prefill_ms(), 1),
                  Fixed(c.pool_price_ms(), 1), Fixed(c.decode_stall_ms(), 1),
                  Fixed(c.kv_pressure_ms(), 1), Fixed(c.kv_wait_ms(), 1), Fixed(c.tenant_ms(), 1),
                  Fixed(c.cost_ms(), 1), FreshnessCell(c.freshness(), causes),
                  c.excluded().empty() ? "-" : c.excluded()});
  }
  out << table.Render();
  for (const std::string& note : response.explanation().notes()) out << "note: " << note << "\n";
}

void PrintPick(const v1::PickResponse& response, std::ostream& out) {
  std::vector<std::string> causes;
  if (response.freshness_cause() != v1::FRESHNESS_CAUSE_UNSPECIFIED) {
    causes.push_back(CauseName(response.freshness_cause()));
  }
  out << "endpoint     " << response.endpoint().address() << " ("
      << response.endpoint().target().worker_id() << "/" << response.endpoint().target().rank()
      << ")\n";
  for (const auto& [name, value] : response.endpoint().headers()) {
    out << "header       " << name << ": " << value << "\n";
  }
  std::vector<std::string> fallbacks;
  for (const auto& f : response.fallbacks()) fallbacks.push_back(f.address());
  out << "fallbacks    " << (fallbacks.empty() ? "-" : absl::StrJoin(fallbacks, ", ")) << "\n"
      << "cached       " << response.predicted_cached_tokens() << " of " << response.prompt_tokens()
      << " tokens\n"
      << "ttft         " << Fixed(response.predicted_ttft_ms(), 1) << " ms (predicted)\n"
      << "knowledge    " << FreshnessCell(response.freshness(), causes) << "\n"
      << "policy       " << response.policy() << " (" << response.reason() << ")\n";
}

absl::Status Release(const Context& context, std::uint64_t reservation_id) {
  v1::OutcomeRequest request;
  request.set_reservation_id(reservation_id);
  request.set_kind(v1::OUTCOME_KIND_FAILED);
  v1::OutcomeResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  return FromGrpc(context.router->ReportOutcome(&grpc_context, request, &response));
}

absl::StatusOr<v1::Tier> ParseTier(const std::string& name) {
  if (name == "gpu") return v1::TIER_GPU;
  if (name == "host") return v1::TIER_HOST;
  if (name == "disk") return v1::TIER_DISK;
  if (name == "external") return v1::TIER_EXTERNAL;
  return absl::InvalidArgumentError(
      absl::StrCat("--tier \"", name, "\" is unknown: use gpu, host, disk or external"));
}

absl::StatusOr<v1::KnowledgeSource> ParseSource(const std::string& name) {
  if (name == "events") return v1::KNOWLEDGE_SOURCE_EVENTS;
  if (name == "in_flight") return v1::KNOWLEDGE_SOURCE_IN_FLIGHT;
  if (name == "predicted") return v1::KNOWLEDGE_SOURCE_PREDICTED;
  return absl::InvalidArgumentError(
      absl::StrCat("--source \"", name, "\" is unknown: use events, in_flight or predicted"));
}

void PrintDumpJson(const DumpArgs& args, const v1::DumpIndexResponse& head,
                   const std::vector<std::uint64_t>& hashes, std::ostream& out) {
  out << "{\"worker\": " << JsonQuoted(args.worker) << ", \"rank\": " << args.rank
      << ", \"tier\": " << JsonQuoted(args.tier) << ", \"source\": " << JsonQuoted(args.source)
      << ", \"engine_seq\": ";
  if (head.engine_seq_valid()) {
    out << head.engine_seq();
  } else {
    out << "null";
  }
  out << ", \"freshness\": " << JsonQuoted(v1::Freshness_Name(head.freshness()).substr(10))
      << ", \"cause\": ";
  if (head.cause() == v1::FRESHNESS_CAUSE_UNSPECIFIED) {
    out << "null";
  } else {
    out << JsonQuoted(CauseName(head.cause()));
  }
  out << ", \"routing_block_size\": " << head.routing_block_size()
      << ", \"epoch\": " << head.epoch() << ", \"hashes\": [";
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    out << (i == 0 ? "\"" : ", \"") << Hex64(hashes[i]) << "\"";
  }
  out << "]}\n";
}

}  // namespace

absl::Status Workers(const Context& context, const std::string& pool) {
  v1::ListWorkersRequest request;
  request.set_pool(pool);
  v1::ListWorkersResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const absl::Status status =
      FromGrpc(context.admin->ListWorkers(&grpc_context, request, &response));
  if (!status.ok()) return status;
  if (context.json) return PrintJson(context, response);
  PrintWorkers(response, *context.out);
  return absl::OkStatus();
}

absl::Status Pick(const Context& context, const v1::PickRequest& request, bool explain, bool keep) {
  v1::PickRequest asked = request;
  asked.set_explain(explain || context.json);
  v1::PickResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const grpc::Status grpc_status =
      explain ? context.admin->Explain(&grpc_context, asked, &response)
              : context.router->PickEndpoint(&grpc_context, asked, &response);
  if (!grpc_status.ok()) return FromGrpc(grpc_status);
  if (context.json) {
    const absl::Status status = PrintJson(context, response);
    if (!status.ok()) return status;
  } else {
    PrintPick(response, *context.out);
    if (explain) PrintCandidates(response, *context.out);
  }
  if (explain) return absl::OkStatus();
  if (keep) {
    if (!context.json) *context.out << "reservation  " << response.reservation_id() << " (kept)\n";
    return absl::OkStatus();
  }
  return Release(context, response.reservation_id());
}

absl::Status IndexStats(const Context& context, const std::string& pool) {
  v1::IndexStatsRequest request;
  request.set_pool(pool);
  v1::IndexStatsResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const absl::Status status =
      FromGrpc(context.admin->IndexStats(&grpc_context, request, &response));
  if (!status.ok()) return status;
  if (context.json) return PrintJson(context, response);
  Table table({"POOL", "BLOCK", "BLOCKS", "PAIRS", "SETS", "MEMORY", "BOUND", "REFUSED",
               "IN FLIGHT", "PREDICTED", "AUDIT FAILURES", "RESERVATIONS"});
  for (const auto& p : response.pools()) {
    table.AddRow({p.pool(), absl::StrCat(p.routing_block_size()), absl::StrCat(p.blocks()),
                  absl::StrCat(p.pairs()), absl::StrCat(p.sets()), HumanBytes(p.bytes()),
                  p.bound_bytes() == 0 ? "none" : HumanBytes(p.bound_bytes()),
                  absl::StrCat(p.refused_stores()), absl::StrCat(p.inflight_blocks()),
                  absl::StrCat(p.predicted_blocks()), absl::StrCat(p.audit_failures()),
                  absl::StrCat(p.open_reservations())});
  }
  *context.out << table.Render();
  return absl::OkStatus();
}

absl::Status IndexDump(const Context& context, const DumpArgs& args) {
  const auto tier = ParseTier(args.tier);
  if (!tier.ok()) return tier.status();
  const auto source = ParseSource(args.source);
  if (!source.ok()) return source.status();
  v1::DumpIndexRequest request;
  request.mutable_target()->set_worker_id(args.worker);
  request.mutable_target()->set_rank(args.rank);
  request.set_tier(*tier);
  request.set_source(*source);

  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const auto reader = context.admin->DumpIndex(&grpc_context, request);
  v1::DumpIndexResponse head;
  v1::DumpIndexResponse chunk;
  std::vector<std::uint64_t> hashes;
  bool first = true;
  while (reader->Read(&chunk)) {
    hashes.insert(hashes.end(), chunk.hashes().begin(), chunk.hashes().end());
    if (first) {
      chunk.clear_hashes();
      head = chunk;
      first = false;
    }
  }
  const absl::Status status = FromGrpc(reader->Finish());
  if (!status.ok()) return status;
  std::sort(hashes.begin(), hashes.end());
  if (context.json) {
    PrintDumpJson(args, head, hashes, *context.out);
    return absl::OkStatus();
  }
  for (const std::uint64_t hash : hashes) *context.out << Hex64(hash) << "\n";
  return absl::OkStatus();
}

absl::Status Drain(const Context& context, const std::string& worker, bool undo) {
  v1::DrainWorkerRequest request;
  request.set_worker_id(worker);
  request.set_undo(undo);
  v1::DrainWorkerResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const absl::Status status =
      FromGrpc(context.admin->DrainWorker(&grpc_context, request, &response));
  if (!status.ok()) return status;
  if (context.json) return PrintJson(context, response);
  *context.out << worker << (undo ? " receives picks again" : " receives no new picks") << "; "
               << response.open_reservations() << " open\n";
  return absl::OkStatus();
}

absl::Status Config(const Context& context) {
  v1::GetConfigRequest request;
  v1::GetConfigResponse response;
  grpc::ClientContext grpc_context;
  client::SetDeadline(&grpc_context, context.timeout);
  const absl::Status status = FromGrpc(context.admin->GetConfig(&grpc_context, request, &response));
  if (!status.ok()) return status;
  if (context.json) return PrintJson(context, response);
  *context.out << "# warmpath-router " << response.version() << "\n"
               << "# policies: " << absl::StrJoin(response.policies(), ", ") << "\n"
               << response.yaml();
  return absl::OkStatus();
}

}  // namespace warmpath::ctl
