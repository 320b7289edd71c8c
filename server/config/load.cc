#include "server/config/load.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxErrors = 100;

// Edits (insert, delete, replace) between two short names.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

bool ParseBytes(std::string_view text, std::uint64_t* value) {
  std::uint64_t factor = 1;
  for (const auto& [suffix, bytes] : {std::pair<std::string_view, std::uint64_t>{"KiB", 1ull << 10},
                                      {"MiB", 1ull << 20},
                                      {"GiB", 1ull << 30},
                                      {"TiB", 1ull << 40}}) {
    if (text.ends_with(suffix)) {
      factor = bytes;
      text.remove_suffix(suffix.size());
      break;
    }
  }
  std::uint64_t number = 0;
  if (!absl::SimpleAtoi(ToAbsl(text), &number)) return false;
  if (number > ~std::uint64_t{0} / factor) return false;
  *value = number * factor;
  return true;
}

// One level of the YAML tree: its node, its path and the names the schema knows there.
struct Level {
  YAML::Node node;  // a map, or undefined when the section is absent
  std::string path;
  std::set<std::string> known;
};

class Loader final : public ConfigVisitor {
 public:
  Loader(const YAML::Node& root, std::string_view source) : source_(source) {
    levels_.push_back({Map(root, ""), "", {}});
  }

  using ConfigVisitor::Integer;

  void Text(const FieldInfo& info, const TextCheck& check, std::string* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined()) return;
    if (!Scalar(node, info)) return;
    if (const absl::Status status = check(node.Scalar()); !status.ok()) {
      Error(node, info, status.message());
      return;
    }
    *value = node.Scalar();
  }

  void TextList(const FieldInfo& info, const TextCheck& check,
                std::vector<std::string>* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined() || node.IsNull()) return;
    if (!node.IsSequence()) {
      Error(node, info, "write a list, for example [a, b]");
      return;
    }
    value->clear();
    for (const YAML::Node& item : node) {
      if (!Scalar(item, info)) return;
      if (const absl::Status status = check(item.Scalar()); !status.ok()) {
        Error(item, info, status.message());
        return;
      }
      value->push_back(item.Scalar());
    }
  }

  void Choice(const FieldInfo& info, const std::vector<std::string>& choices,
              std::string* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined()) return;
    if (!Scalar(node, info)) return;
    if (std::find(choices.begin(), choices.end(), node.Scalar()) == choices.end()) {
      Error(node, info,
            absl::StrCat("\"", node.Scalar(), "\" is unknown: use one of ",
                         absl::StrJoin(choices, ", ")));
      return;
    }
    *value = node.Scalar();
  }

  void Integer(const FieldInfo& info, const IntegerBounds& bounds, std::uint64_t* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined()) return;
    if (!Scalar(node, info)) return;
    const bool bytes = info.unit == "bytes";
    std::uint64_t number = 0;
    const bool parsed =
        bytes ? ParseBytes(node.Scalar(), &number) : absl::SimpleAtoi(node.Scalar(), &number);
    if (!parsed) {
      Error(node, info,
            absl::StrCat("\"", node.Scalar(), "\" is no ",
                         bytes ? "size: write bytes or a number with KiB, MiB, GiB"
                               : "whole number: write digits only"));
      return;
    }
    if (number < bounds.min || number > bounds.max) {
      const auto text = [&](std::uint64_t n) { return bytes ? FormatBytes(n) : absl::StrCat(n); };
      Error(node, info,
            absl::StrCat(text(number), " is out of bounds: write ", text(bounds.min), " to ",
                         text(bounds.max)));
      return;
    }
    *value = number;
  }

  void Time(const FieldInfo& info, const DurationBounds& bounds, absl::Duration* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined()) return;
    if (!Scalar(node, info)) return;
    absl::Duration duration;
    if (!absl::ParseDuration(node.Scalar(), &duration)) {
      Error(node, info,
            absl::StrCat("\"", node.Scalar(),
                         "\" is no duration: write a number with its unit, for example 500ms, 10s "
                         "or 5m"));
      return;
    }
    if (duration < bounds.min || duration > bounds.max) {
      Error(
          node, info,
          absl::StrCat(node.Scalar(), " is out of bounds: write ", absl::FormatDuration(bounds.min),
                       " to ", absl::FormatDuration(bounds.max)));
      return;
    }
    *value = duration;
  }

  void Switch(const FieldInfo& info, bool* value) override {
    const YAML::Node node = Take(info);
    if (!node.IsDefined()) return;
    if (!Scalar(node, info)) return;
    if (node.Scalar() == "true") {
      *value = true;
    } else if (node.Scalar() == "false") {
      *value = false;
    } else {
      Error(node, info, absl::StrCat("\"", node.Scalar(), "\": write true or false"));
    }
  }

  void BeginSection(const FieldInfo& info) override {
    const YAML::Node node = Take(info);
    const std::string path = Path(info.name);
    levels_.push_back({Map(node, path), path, {}});
  }
  void EndSection() override { Pop(); }

  bool Given(std::string_view name) const override {
    const YAML::Node& map = levels_.back().node;
    return map.IsDefined() && map[std::string(name)].IsDefined();
  }
  void Refuse(std::string_view name, std::string_view message) override {
    const YAML::Node& map = levels_.back().node;
    int line = 1;
    for (const auto& entry : map) {
      if (entry.first.IsScalar() && entry.first.Scalar() == name) line = Line(entry.first);
    }
    Add(line, Path(name), ToAbsl(message));
  }

  std::size_t BeginItems(const FieldInfo& info, std::size_t size) override {
    const YAML::Node node = Take(info);
    items_.push_back({YAML::Node(YAML::NodeType::Undefined), Path(info.name), {}});
    if (!node.IsDefined() || node.IsNull()) return size;
    if (!node.IsSequence()) {
      Error(node, info, "write a list: each entry starts with \"- \"");
      return size;
    }
    items_.back().node.reset(node);
    return node.size();
  }
  void BeginItem(std::size_t index) override {
    const std::string path = absl::StrCat(items_.back().path, "[", index, "]");
    const YAML::Node list = items_.back().node;
    const YAML::Node item = list.IsDefined() ? list[index] : list;
    item_lines_.push_back(item.IsDefined() ? Line(item) : 0);
    levels_.push_back({Map(item, path), path, {}});
  }
  void EndItem() override { Pop(); }
  void EndItems() override { items_.pop_back(); }

  // Line of the index-th pool, for rules that no single field can check.
  int ItemLine(std::size_t index) const {
    return index < item_lines_.size() ? item_lines_[index] : 1;
  }

  void Add(int line, std::string_view path, absl::string_view message) {
    if (errors_.size() < kMaxErrors) {
      errors_.push_back(
          absl::StrCat(source_, ":", line, ": ", ToAbsl(path), path.empty() ? "" : ": ", message));
    }
  }

  // REQUIRES: the walk is over.
  absl::Status Result() {
    Pop();
    if (errors_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(errors_, "\n"));
  }

 private:
  static int Line(const YAML::Node& node) { return node.Mark().line + 1; }

  std::string Path(std::string_view name) const {
    const std::string& path = levels_.back().path;
    return path.empty() ? std::string(name) : absl::StrCat(path, ".", ToAbsl(name));
  }

  void Error(const YAML::Node& node, const FieldInfo& info, absl::string_view message) {
    Add(Line(node), Path(info.name), message);
  }

  // The field's node, undefined when absent; the name becomes known.
  YAML::Node Take(const FieldInfo& info) {
    Level& level = levels_.back();
    level.known.insert(std::string(info.name));
    if (!level.node.IsDefined()) return YAML::Node(YAML::NodeType::Undefined);
    const YAML::Node& map = level.node;
    return map[std::string(info.name)];
  }

  bool Scalar(const YAML::Node& node, const FieldInfo& info) {
    if (node.IsScalar()) return true;
    Error(node, info,
          node.IsNull() ? "has no value: write one or remove the line" : "write a single value");
    return false;
  }

  YAML::Node Map(const YAML::Node& node, std::string_view path) {
    if (node.IsDefined() && node.IsMap()) return node;
    if (node.IsDefined() && !node.IsNull()) {
      Add(Line(node), path, "write \"key: value\" lines here");
    }
    return YAML::Node(YAML::NodeType::Undefined);
  }

  // Leaves a level: what the schema did not ask for is unknown.
  void Pop() {
    const Level& level = levels_.back();
    std::set<std::string> seen;
    if (level.node.IsDefined()) {
      for (const auto& entry : level.node) {
        const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "(not a name)";
        const std::string path = level.path.empty() ? key : absl::StrCat(level.path, ".", key);
        if (!level.known.contains(key)) {
          Add(Line(entry.first), path, Unknown(key, level.known));
        } else if (!seen.insert(key).second) {
          Add(Line(entry.first), path, "is given twice: remove one of the lines");
        }
      }
    }
    levels_.pop_back();
  }

  static std::string Unknown(std::string_view key, const std::set<std::string>& known) {
    std::size_t least = key.size() > 64 ? 0 : 3;
    std::string_view nearest;
    for (const std::string& name : known) {
      if (key.size() > 64) break;
      const std::size_t distance = EditDistance(key, name);
      if (distance < least || (distance == least && nearest.empty())) {
        least = distance;
        nearest = name;
      }
    }
    if (!nearest.empty()) {
      return absl::StrCat("unknown key: did you mean ", ToAbsl(nearest), "?");
    }
    return absl::StrCat("unknown key: remove it or use one of ", absl::StrJoin(known, ", "));
  }

  const std::string source_;
  std::vector<Level> levels_;
  std::vector<Level> items_;
  std::vector<int> item_lines_;
  std::vector<std::string> errors_;
};

// Rules that no single field can check.
void CheckWhole(const RouterConfig& config, Loader& loader) {
  StringSet names;
  for (std::size_t i = 0; i < config.fleet.pools.size(); ++i) {
    const PoolConfig& pool = config.fleet.pools[i];
    const std::string path = absl::StrCat("pools[", i, "]");
    if (pool.name.empty()) loader.Add(loader.ItemLine(i), path, "has no name: add \"name: MODEL\"");
    std::vector<std::string> all = pool.aliases;
    if (!pool.name.empty()) all.push_back(pool.name);
    for (const std::string& name : all) {
      if (!names.insert(name).second) {
        loader.Add(loader.ItemLine(i), path,
                   absl::StrCat("the model name \"", name,
                                "\" is used twice: each name means one "
                                "pool"));
      }
    }
  }
  if (config.fleet.pools.size() > config.fleet.max_pools) {
    loader.Add(loader.ItemLine(0), "pools",
               absl::StrCat("has ", config.fleet.pools.size(), " entries: raise fleet.max_pools (",
                            config.fleet.max_pools, ") or remove some"));
  }
}

}  // namespace

absl::StatusOr<RouterConfig> LoadConfig(std::string_view yaml, std::string_view source) {
  if (yaml.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(source), ": is larger than 1 MiB: this is no configuration"));
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(yaml));
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(source), ":", documents[1].Mark().line + 1,
                       ": a second document begins, which would be ignored: remove the \"---\""));
    }
    const YAML::Node root = documents.empty() ? YAML::Node() : documents[0];
    RouterConfig config;
    Loader loader(root, source);
    VisitConfig(loader, config);
    CheckWhole(config, loader);
    WARMPATH_RETURN_IF_ERROR(loader.Result());
    return config;
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(source), ":", error.mark.line + 1, ": is no YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(source), ": ", error.what()));
  }
}

absl::StatusOr<RouterConfig> LoadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat("configuration ", path, ": ", std::generic_category().message(errno)));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  // A directory opens like a file: without this it would count as an empty one, all defaults.
  if (file.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("configuration ", path, ": can not be read: is it a directory?"));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return LoadConfig(text, path);
}

}  // namespace warmpath
