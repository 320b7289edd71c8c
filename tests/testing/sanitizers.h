// Is the test built with a sanitizer that makes it many times slower?
#ifndef WARMPATH_TESTS_TESTING_SANITIZERS_H_
#define WARMPATH_TESTS_TESTING_SANITIZERS_H_

namespace warmpath::testing {

// Address or thread. Tests that repeat something until chance has had its say do it less often
// then.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_TESTING_SANITIZERS_H_
