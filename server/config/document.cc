#include "server/config/document.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

// YAML's double-quoted scalars take JSON's escapes.
std::string Quoted(std::string_view text) {
  return absl::StrCat(
      "\"",
      absl::StrReplaceAll(
          ToAbsl(text),
          {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}, {"\r", "\\r"}, {"\t", "\\t"}}),
      "\"");
}

std::string IntegerText(const FieldInfo& info, std::uint64_t value) {
  return info.unit == "bytes" ? FormatBytes(value) : absl::StrCat(value);
}

// absl prints zero without a unit, which its parser takes, but readers should see one.
std::string DurationText(absl::Duration value) {
  return value == absl::ZeroDuration() ? "0s" : absl::FormatDuration(value);
}

std::string ListText(const std::vector<std::string>& values) {
  std::vector<std::string> quoted;
  quoted.reserve(values.size());
  for (const std::string& value : values) quoted.push_back(Quoted(value));
  return absl::StrCat("[", absl::StrJoin(quoted, ", "), "]");
}

class YamlPrinter final : public ConfigVisitor {
 public:
  using ConfigVisitor::Integer;

  void Text(const FieldInfo& info, const TextCheck&, std::string* value) override {
    Line(info, Quoted(*value));
  }
  void TextList(const FieldInfo& info, const TextCheck&, std::vector<std::string>* value) override {
    Line(info, ListText(*value));
  }
  void Choice(const FieldInfo& info, const std::vector<std::string>&, std::string* value) override {
    Line(info, *value);
  }
  void Integer(const FieldInfo& info, const IntegerBounds&, std::uint64_t* value) override {
    Line(info, IntegerText(info, *value));
  }
  void Time(const FieldInfo& info, const DurationBounds&, absl::Duration* value) override {
    Line(info, DurationText(*value));
  }
  void Switch(const FieldInfo& info, bool* value) override {
    Line(info, *value ? "true" : "false");
  }
  void BeginSection(const FieldInfo& info) override {
    Line(info, "");
    indent_ += 2;
    if (info.other_name || hidden_ > 0) ++hidden_;
  }
  void EndSection() override {
    indent_ -= 2;
    if (hidden_ > 0) --hidden_;
  }
  std::size_t BeginItems(const FieldInfo& info, std::size_t size) override {
    Line(info, size == 0 ? "[]" : "");
    indent_ += 4;
    return size;
  }
  void BeginItem(std::size_t) override { first_of_item_ = true; }
  void EndItem() override {}
  void EndItems() override { indent_ -= 4; }

  std::string Take() { return std::move(out_); }

 private:
  void Line(const FieldInfo& info, std::string_view value) {
    if (info.other_name || hidden_ > 0) return;
    const std::string margin =
        first_of_item_ ? std::string(indent_ - 2, ' ') + "- " : std::string(indent_, ' ');
    first_of_item_ = false;
    absl::StrAppend(&out_, margin, ToAbsl(info.name), ":", value.empty() ? "" : " ", ToAbsl(value),
                    "\n");
  }

  std::size_t indent_ = 0;
  int hidden_ = 0;  // depth inside a section that is another name
  bool first_of_item_ = false;
  std::string out_;
};

class MarkdownPrinter final : public ConfigVisitor {
 public:
  using ConfigVisitor::Integer;

  void Text(const FieldInfo& info, const TextCheck&, std::string* value) override {
    Row(info, "text", value->empty() ? "" : *value);
  }
  void TextList(const FieldInfo& info, const TextCheck&, std::vector<std::string>* value) override {
    Row(info, "list of text", ListText(*value));
  }
  void Choice(const FieldInfo& info, const std::vector<std::string>& choices,
              std::string* value) override {
    Row(info, absl::StrJoin(choices, ", "), *value);
  }
  void Integer(const FieldInfo& info, const IntegerBounds& bounds, std::uint64_t* value) override {
    Row(info,
        absl::StrCat(IntegerText(info, bounds.min), " to ", IntegerText(info, bounds.max),
                     info.unit.empty() || info.unit == "bytes" ? "" : " ",
                     info.unit == "bytes" ? "" : ToAbsl(info.unit)),
        IntegerText(info, *value));
  }
  void Time(const FieldInfo& info, const DurationBounds& bounds, absl::Duration* value) override {
    Row(info, absl::StrCat(DurationText(bounds.min), " to ", DurationText(bounds.max)),
        DurationText(*value));
  }
  void Switch(const FieldInfo& info, bool* value) override {
    Row(info, "true or false", *value ? "true" : "false");
  }
  void BeginSection(const FieldInfo& info) override {
    path_.emplace_back(info.name);
    if (path_.size() == 1) Heading(info);
  }
  void EndSection() override { path_.pop_back(); }
  std::size_t BeginItems(const FieldInfo& info, std::size_t) override {
    path_.emplace_back(absl::StrCat(ToAbsl(info.name), "[]"));
    Heading(info);
    return 1;  // one item stands for all
  }
  void BeginItem(std::size_t) override {}
  void EndItem() override {}
  void EndItems() override { path_.pop_back(); }

  std::string Take() { return std::move(out_); }

 private:
  void Heading(const FieldInfo& info) {
    absl::StrAppend(&out_, "\n## ", ToAbsl(info.name), "\n\n", ToAbsl(info.doc),
                    "\n\n| setting | default | allowed | meaning |\n|---|---|---|---|\n");
  }
  void Row(const FieldInfo& info, std::string_view allowed, std::string_view value) {
    absl::StrAppend(&out_, "| `", absl::StrJoin(path_, "."), ".", ToAbsl(info.name), "` | ",
                    value.empty() || info.other_name ? "" : absl::StrCat("`", ToAbsl(value), "`"),
                    " | ", ToAbsl(allowed), " | ", ToAbsl(info.doc), " |\n");
  }

  std::vector<std::string> path_;
  std::string out_;
};

}  // namespace

std::string EffectiveYaml(const RouterConfig& config) {
  YamlPrinter printer;
  RouterConfig copy = config;  // visitors take what they could write to
  VisitConfig(printer, copy);
  return printer.Take();
}

std::string ConfigurationTables() {
  MarkdownPrinter printer;
  RouterConfig defaults;
  VisitConfig(printer, defaults);
  return printer.Take();
}

}  // namespace warmpath
