#include "tools/report/table.h"
#include "data/read/json_message.h"
#include "estimator/plan/units.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/text.h"

#include <doctest/doctest.h>

namespace shardplan {

TEST_CASE("CSV quotes separators, quotes and line ends") {
  const Table table = {.columns = {"a", "b,c"},
                       .rows = {{std::string("x\"y"), std::string("line\nend")}}};
  CHECK(csv_text(table) == "a,\"b,c\"\n\"x\"\"y\",\"line\nend\"\n");
}

TEST_CASE("CSV text never begins like a formula, numbers stay numbers") {
  const Table table = {
      .columns = {"a", "b", "c", "d"},
      .rows = {{std::string("=1+1"), std::string("@x,y"), std::int64_t{-5}, -0.5}}};
  CHECK(csv_rows(table) == "'=1+1,\"'@x,y\",-5,-0.5\n");
}

TEST_CASE("CSV writes nothing for an absent cell and keeps UTF-8") {
  const Table table = {.columns = {"a", "b"}, .rows = {{Cell(), std::string("模型é")}}};
  CHECK(csv_rows(table) == ",模型é\n");
}

TEST_CASE("doubles read back equal from CSV") {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, 5e-324, 123456789.123456789}) {
    INFO(value);
    CHECK(std::strtod(exact_text(value).c_str(), nullptr) == value);
  }
}

TEST_CASE("JSON keeps the order of columns and escapes text") {
  const Table table = {.columns = {"z", "a", "n", "x"},
                       .rows = {{std::string("q\"\n"), std::int64_t{1} << 60, Cell(), 0.5}}};
  CHECK(table_json(table) ==
        "[{\"z\":\"q\\\"\\n\",\"a\":1152921504606846976,\"n\":null,\"x\":0.5}]\n");
}

TEST_CASE("JSON repairs text that is no UTF-8 instead of failing") {
  const Table table = {.columns = {"a"}, .rows = {{std::string("\xff")}}};
  CHECK(table_json(table) == "[{\"a\":\"\xEF\xBF\xBD\"}]\n");
}

TEST_CASE("no line of a table ends in spaces") {
  const Table table = {
      .columns = {"name", "notes"},
      .rows = {{std::string("long name"), std::string()}, {std::string("é"), std::string("x")}}};
  CHECK(table_text(table) == "name       notes\nlong name\né          x\n");
}

TEST_CASE("columns of numbers are right-aligned, words left-aligned by characters") {
  const Table table = {.columns = {"n", "name", "end"},
                       .rows = {{std::int64_t{1000}, std::string("é"), std::string("x")},
                                {std::int64_t{5}, std::string("long name"), std::string("y")}}};
  CHECK(table_text(table) ==
        "    n  name       end\n"
        "1,000  é          x\n"
        "    5  long name  y\n");
}

TEST_CASE("numbers for people") {
  CHECK(grouped(8030261248) == "8,030,261,248");
  CHECK(grouped(999) == "999");
  CHECK(whole(2118.6) == "2,119");
  CHECK(whole(16384) == "16,384");
  CHECK(grouped(-1000) == "-1,000");
  CHECK(gib(kGiB * 3 / 2) == "1.50");
  CHECK(percent(0.8) == "80 %");
  CHECK(percent(0.4312) == "43.1 %");
}

TEST_CASE("messages stay on one line whatever a file name holds") {
  CHECK(one_line("a\nb\x1b[31mé") == "a\\x0ab\\x1b[31mé");
}

}  // namespace shardplan
