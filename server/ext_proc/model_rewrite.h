// The "model" of a JSON body, found and replaced without building a tree of the rest, so that what
// a client sent stays as it is, byte for byte. Works on the beginning of a body, too.
#ifndef WARMPATH_SERVER_EXT_PROC_MODEL_REWRITE_H_
#define WARMPATH_SERVER_EXT_PROC_MODEL_REWRITE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace warmpath {

struct ModelScan {
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  bool object = false;     // the text begins with an object
  bool complete = false;   // which ends within the text, with nothing but white space behind it
  bool empty = true;       // it has no members
  std::size_t inside = 0;  // just behind its brace
  // Each value of a member "model" of the outermost object, quotes included.
  std::vector<Range> models;
};

// Checks no more than it needs: a text that is no JSON may get through.
ModelScan ScanModel(std::string_view json);

// The model's name; empty when there is none or it is no string.
std::string ModelOf(std::string_view json, const ModelScan& scan);

// Replaces every "model", or adds one. REQUIRES: scan is of *json, and scan.object.
void ReplaceModel(const ModelScan& scan, std::string_view model, std::string* json);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_MODEL_REWRITE_H_
