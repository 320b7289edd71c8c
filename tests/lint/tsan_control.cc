// Proves that a ThreadSanitizer run can be believed. "clean" is two threads that share a field
// under absl::Mutex: a report means that abseil is not the instrumented one. "race" is the same
// without the lock: no report means that the sanitizer does not work. The two threads overlap
// for certain: each signals that it has begun and goes on until the other has begun as well.
#include <atomic>
#include <cstdio>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace {

struct Shared {
  absl::Mutex mu;
  // Deliberately without ABSL_GUARDED_BY: the race below must compile.
  long value = 0;
};

void Work(Shared* shared, bool lock, std::atomic<int>* begun) {
  begun->fetch_add(1);
  while (begun->load() < 2) std::this_thread::yield();
  for (int i = 0; i < 20000; ++i) {
    if (lock) {
      absl::MutexLock guard(&shared->mu);
      ++shared->value;
    } else {
      ++shared->value;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool lock = argc < 2 || std::string_view(argv[1]) != "race";
  Shared shared;
  std::atomic<int> begun{0};
  std::thread first(Work, &shared, lock, &begun);
  std::thread second(Work, &shared, lock, &begun);
  first.join();
  second.join();
  std::printf("value=%ld\n", shared.value);
  return 0;
}
