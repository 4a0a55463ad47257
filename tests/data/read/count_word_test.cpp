#include "data/read/count_word.h"

#include <doctest/doctest.h>

namespace shardplan {

TEST_CASE("groups of digits may be marked") {
  CHECK(count_of("8_192") == 8192);
  CHECK(count_of("1_048_576") == 1024 * 1024);
  for (const char* word : {"_8", "8_", "8__192", "8_k"}) {
    CHECK_FALSE(count_of(word).has_value());
  }
}

TEST_CASE("a size may end in k or m of either case, with or without i, in powers of 1024") {
  for (const char* word : {"8k", "8K", "8Ki"}) { CHECK(count_of(word) == 8 * 1024); }
  for (const char* word : {"3m", "3M", "3Mi"}) { CHECK(count_of(word) == 3 * 1024 * 1024); }
  CHECK(count_of("12") == 12);
  for (const char* word : {"", "k", "8kB", "8 k", "-8k", "1.5k", "9223372036854775807k"}) {
    CHECK_FALSE(count_of(word).has_value());
  }
}

}  // namespace shardplan
