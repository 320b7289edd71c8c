// warmpath-replay sim: simulates fleets of engines under several policies and compares them.
#ifndef WARMPATH_CLIENT_REPLAY_SIM_COMMAND_H_
#define WARMPATH_CLIENT_REPLAY_SIM_COMMAND_H_

#include "absl/status/status.h"

namespace warmpath::replay {

// Reads its own flags and those that all commands share (main.cc). Writes the table to standard
// output, progress to standard error and, when asked, a JSON file.
absl::Status RunSim();

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_SIM_COMMAND_H_
