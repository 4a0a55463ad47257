#include "data/read/text_file.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/data/message_of.h"

using namespace shardplan;

TEST_CASE("what is no file to read is refused by name") {
  CHECK(message_of([] { read_text_file("/nonexistent.json"); }) ==
        "/nonexistent.json: found no readable file, expected one: No such file or directory");
  CHECK(message_of([] { read_text_file("/", "--model: "); }) ==
        "--model: /: found a directory, expected a file");
  CHECK(message_of([] { read_text_file("/dev/zero"); }) ==
        "/dev/zero: found a device, expected a file");
}

TEST_CASE("a file whose reading fails is not taken for one that ends") {
  const std::string expected = "/proc/self/mem: cannot be read: Input/output error";
  CHECK(message_of([] { read_text_file("/proc/self/mem"); }) == expected);
  TextFile file("/proc/self/mem");
  std::string line;
  CHECK(message_of([&] { file.next_line(line); }) == expected);
}

TEST_CASE("lines and the rest behind them are the text of the file") {
  const std::string path = std::string(SHARDPLAN_SOURCE_DIR) + "/data/models/llama3-8b.json";
  const std::string text = read_text_file(path);
  TextFile by_line(path);
  std::string lines;
  for (std::string line; by_line.next_line(line);) { lines += line + "\n"; }
  CHECK(lines == text);
  TextFile half(path);
  std::string line;
  REQUIRE(half.next_line(line));
  CHECK(line + "\n" + half.rest() == text);
}
