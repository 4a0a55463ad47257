// Scalars as PyYAML's SafeLoader reads them: yaml.safe_load of PyYAML 6.0 gave every answer here.
#include "tools/from/yaml_scalar.h"

#include <doctest/doctest.h>

namespace shardplan {

TEST_CASE("integers are those of YAML 1.1") {
  CHECK(as_pyyaml_reads("16_384") == "16384");
  CHECK(as_pyyaml_reads("500_000") == "500000");
  CHECK(as_pyyaml_reads("-1_0") == "-10");
  CHECK(as_pyyaml_reads("+12") == "12");
  CHECK(as_pyyaml_reads("010") == "8");
  CHECK(as_pyyaml_reads("0x10") == "16");
  CHECK(as_pyyaml_reads("0b1010") == "10");
  CHECK(as_pyyaml_reads("1:30") == "90");
  CHECK(as_pyyaml_reads("190:20:30") == "685230");
  CHECK(as_pyyaml_reads("0") == "0");
}

TEST_CASE("booleans have three spellings of three words each") {
  for (const char* const word : {"yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"}) {
    CHECK(as_pyyaml_reads(word) == "true");
  }
  for (const char* const word :
       {"no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"}) {
    CHECK(as_pyyaml_reads(word) == "false");
  }
  CHECK(as_pyyaml_reads("yES") == "yES");
  CHECK(as_pyyaml_reads("y") == "y");
}

TEST_CASE("what is neither stays as it is") {
  for (const char* const word : {"1e-4", "1e5", "08", "0o17", "_1", "1:75", "a_b", "16_384 tokens",
                                 "2.0e-5", "1.5", "12:30:5x", "", "-", "0b2", "0xg", "v1.0_rc"}) {
    CHECK(as_pyyaml_reads(word) == word);
  }
  CHECK(as_pyyaml_reads("1_000.5") == "1000.5");
  CHECK(as_pyyaml_reads("99999999999999999999") == "99999999999999999999");
}

}  // namespace shardplan
