// Rows that fit a screen.
#include "tools/screen/screen.h"

#include <doctest/doctest.h>

#include "tests/tools/run_program.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

std::vector<std::string> rows_of(const std::string& text) {
  std::vector<std::string> rows;
  for (std::size_t start = 0; start < text.size(); start = text.find('\n', start) + 1) {
    rows.push_back(text.substr(start, text.find('\n', start) - start));
  }
  return rows;
}

// What a shell makes of a command over several rows.
std::string joined_by_shell(const std::string& command) {
  const TemporaryDirectory folder;
  write_file(folder.path() + "/words", "printf '%s|' " + command);
  StartedProgram shell("/bin/sh", {folder.path() + "/words"}, {});
  return shell.wait().out;
}

}  // namespace

TEST_CASE("a line wraps at spaces, behind its label, and ends in dots where it is cut") {
  const Screen screen = {.width = 30};
  const std::string text = "one two three four five six seven eight nine ten";
  CHECK(screen_line(screen, "count", text) ==
        "count     one two three four\n          five six seven eight\n          nine ten\n");
  CHECK(screen_line(screen, "count", text, 2) ==
        "count     one two three four\n          five six seven ei...\n");
  for (const std::string& row : rows_of(screen_line(screen, "word", std::string(77, 'x')))) {
    CHECK(display_width(row) <= 30);
  }
}

TEST_CASE("a command that is broken over rows is the same command to a shell") {
  const std::string command =
      "shardplan estimate --model 'a name' --cluster 2x8-h100 --framework-option "
      "a_rather_long_switch_of_some_framework=caching_expandable --from "
      "'/a very long/path of a file/that no row of a terminal can hold/at all/pretrain it.sh' --tp "
      "2";
  for (const std::int64_t width : {40, 60, 80, 200}) {
    CAPTURE(width);
    const std::string rows = command_rows({.width = width}, command);
    for (const std::string& row : rows_of(rows)) { CHECK(display_width(row) <= width); }
    CHECK(joined_by_shell(rows) == joined_by_shell(command));
  }
}

TEST_CASE("a table gives up its lightest columns, then cuts the last") {
  const ScreenTable table = {
      .table = {.columns = {"rank", "speed", "words"},
                .rows = {{std::int64_t{1}, std::string("10,000"), std::string(60, 'w')}}},
      .weights = {kMustStand, 10, kMustStand}};
  const std::string narrow = screen_table({.width = 46}, table);
  CHECK(narrow.find("speed") == std::string::npos);
  for (const std::string& row : rows_of(narrow)) { CHECK(display_width(row) <= 46); }
  CHECK(screen_table({.width = 100}, table).find("speed") != std::string::npos);
}

TEST_CASE("where an answer has too many rows the lightest blocks are left out") {
  std::vector<Block> blocks = {{kMustStand, "head\n"}};
  for (int weight = 1; weight <= 30; ++weight) {
    blocks.push_back({weight, std::to_string(weight) + "\n"});
  }
  const std::string text = composed(blocks);
  CHECK(num_rows(text) == kMostRows);
  CHECK(text.starts_with("head\n8\n9\n"));
}

TEST_CASE("numbers have no zero below zero and no range of equal ends") {
  CHECK(fixed(-0.0001, 2) == "0.00");
  CHECK(signed_percent(-0.00001) == "0.00 %");
  CHECK(signed_percent(0.00001) == "0.00 %");
  CHECK(signed_percent(0.0106) == "+1.06 %");
  CHECK(range_of("93.75", "93.75") == "93.75");
  CHECK(range_of("93.75", "93.76") == "93.75 to 93.76");
}

}  // namespace shardplan
