#include "client/agent/agent_config.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

bool IsHostPort(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  return colon != std::string_view::npos && colon > 0 &&
         absl::SimpleAtoi(ToAbsl(address.substr(colon + 1)), &port) && port >= 1 && port <= 65535;
}

// "host:port" of an http URL; empty when it has no host.
std::string HostPortOf(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return "";
  std::string_view rest = url.substr(scheme + 3);
  rest = rest.substr(0, rest.find_first_of("/?#"));
  if (rest.empty()) return "";
  if (IsHostPort(rest)) return std::string(rest);
  return absl::StrCat(ToAbsl(rest), url.substr(0, scheme) == "https" ? ":443" : ":80");
}

bool IsWorkerId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == ':' ||
           c == '-';
  });
}

class Problems {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    list_.push_back(absl::StrCat(parts...));
  }
  absl::Status ToStatus() const {
    if (list_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(list_, "\n"));
  }

 private:
  std::vector<std::string> list_;
};

void CheckEndpoints(const EngineConfig& engine, const std::string& where, Problems* problems) {
  if (!engine.replay.empty() && engine.events.empty()) {
    problems->Add(where, "replay: set without events; give the events endpoint too");
  }
  for (const auto& [key, endpoint] :
       {std::pair{"events", engine.events}, std::pair{"replay", engine.replay}}) {
    if (endpoint.empty()) continue;
    if (!absl::StrContains(endpoint, "://")) {
      problems->Add(where, key, ": \"", endpoint,
                    "\" is no ZeroMQ endpoint; give one like tcp://127.0.0.1:5557");
      continue;
    }
    const absl::StatusOr<std::string> last = EndpointOfRank(endpoint, engine.ranks - 1);
    if (!last.ok()) problems->Add(where, key, ": ", last.status().message());
  }
  if (!engine.events.empty() && !engine.replay.empty()) {
    for (Rank a = 0; a < engine.ranks; ++a) {
      const auto replay = EndpointOfRank(engine.replay, a);
      const auto first = EndpointOfRank(engine.events, 0);
      if (!replay.ok() || !first.ok()) return;
      for (Rank b = 0; b < engine.ranks; ++b) {
        if (*replay != *EndpointOfRank(engine.events, b)) continue;
        problems->Add(where, "replay: ", *replay, " of rank ", a,
                      " is the events endpoint of rank ", b,
                      "; put at least `ranks` ports between the two");
        return;
      }
    }
  }
}

void CompleteEngine(EngineConfig* engine, const std::string& where, Problems* problems) {
  if (!absl::StartsWith(engine->http, "http://") && !absl::StartsWith(engine->http, "https://")) {
    problems->Add(where, "engine_http: \"", engine->http,
                  "\" is no URL; give one like http://127.0.0.1:8000");
  }
  while (absl::EndsWith(engine->http, "/")) engine->http.pop_back();
  if (engine->advertise.empty()) {
    const std::string own = HostPortOf(engine->http);
    if (own.empty()) return;  // Said above; what follows from it would only repeat it.
    engine->advertise.push_back(own);
  }
  if (engine->advertise.size() != 1 && engine->advertise.size() != engine->ranks) {
    problems->Add(where, "advertise: ", engine->advertise.size(), " addresses for ", engine->ranks,
                  " ranks; give one, or one per rank");
  }
  for (const std::string& address : engine->advertise) {
    if (!IsHostPort(address)) {
      problems->Add(where, "advertise: \"", address, "\" is not host:port");
    }
  }
  if (engine->worker_id.empty()) engine->worker_id = engine->advertise.front();
  if (!IsWorkerId(engine->worker_id)) {
    problems->Add(where, "worker_id: \"", engine->worker_id,
                  "\" must be 1 to 128 letters, digits and ._:-");
  }
  if (engine->num_blocks != 0 && engine->num_blocks <= engine->reserved_blocks) {
    problems->Add(where, "num_blocks: must be above reserved_blocks (", engine->reserved_blocks,
                  ")");
  }
  CheckEndpoints(*engine, where, problems);
}

}  // namespace

absl::StatusOr<std::string> EndpointOfRank(std::string_view endpoint, Rank rank) {
  if (rank == 0) return std::string(endpoint);
  if (absl::StartsWith(ToAbsl(endpoint), "inproc://")) {
    return absl::StrCat(ToAbsl(endpoint), "_dp", rank);
  }
  const std::size_t colon = endpoint.rfind(':');
  std::uint32_t port = 0;
  if (absl::StartsWith(ToAbsl(endpoint), "tcp://") && colon > 5 &&
      absl::SimpleAtoi(ToAbsl(endpoint.substr(colon + 1)), &port) && port > 0 &&
      port + rank <= 65535) {
    return absl::StrCat(ToAbsl(endpoint.substr(0, colon + 1)), port + rank);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", ToAbsl(endpoint), "\" has no endpoint for rank ", rank,
                   "; use tcp://host:port, where rank r has port + r"));
}

absl::Status CompleteConfig(AgentConfig* config) {
  Problems problems;
  if (config->routers.empty() || config->routers.front().address.empty()) {
    problems.Add("router: missing; give at least one host:port");
  }
  std::set<std::string> seen;
  for (const RouterOptions& router : config->routers) {
    if (!router.address.empty() && !IsHostPort(router.address)) {
      problems.Add("router: \"", router.address, "\" is not host:port");
    }
    if (!seen.insert(router.address).second) {
      problems.Add("router: \"", router.address, "\" is there twice");
    }
    if (router.cert_file.empty() != router.key_file.empty()) {
      problems.Add("router_cert and router_key: give both or none");
    }
  }
  if (config->engines.empty()) problems.Add("engines: none; give at least engine_http");
  std::set<std::string> workers;
  std::set<std::string> state_files;
  for (std::size_t i = 0; i < config->engines.size(); ++i) {
    EngineConfig& engine = config->engines[i];
    const std::string where =
        config->engines.size() == 1 ? std::string() : absl::StrCat("engines[", i, "].");
    CompleteEngine(&engine, where, &problems);
    if (!workers.insert(engine.worker_id).second) {
      problems.Add(where, "worker_id: \"", engine.worker_id, "\" is there twice");
    }
    if (!engine.state_file.empty() && !state_files.insert(engine.state_file).second) {
      problems.Add(where, "state_file: \"", engine.state_file, "\" is there twice");
    }
  }
  return problems.ToStatus();
}

}  // namespace warmpath
