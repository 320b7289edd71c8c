// One spelling of flags for all programs: --speed-factor. Abseil names flags with underscores and
// takes no other spelling on the command line.
#ifndef WARMPATH_CORE_BASE_FLAG_NAMES_H_
#define WARMPATH_CORE_BASE_FLAG_NAMES_H_

#include <string_view>

namespace warmpath {

// Turns the dashes inside flag names into underscores, in place, up to a bare "--". Values keep
// theirs. Call it before absl::ParseCommandLine.
inline void AcceptDashesInFlagNames(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") return;
    if (argument.substr(0, 2) != "--") continue;
    for (std::size_t at = 2; at < argument.size() && argument[at] != '='; ++at) {
      if (argv[i][at] == '-') argv[i][at] = '_';
    }
  }
}

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_FLAG_NAMES_H_
