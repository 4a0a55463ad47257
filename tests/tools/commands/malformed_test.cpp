// Every line of tests/malformed/index.txt through the built program: the exit code, one clear line,
// nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

struct Malformed {
  int exit_code = 0;
  std::string kind;      // "flags", or what the fixture stands for
  std::string what;      // arguments, or the fixture's path under tests/malformed
  std::string fragment;  // what the message must contain
};

std::string fixtures() {
  return std::string(SHARDPLAN_SOURCE_DIR) + "/tests/malformed";
}

std::string next_field(std::istringstream& line) {
  std::string field;
  std::getline(line, field, '|');
  const std::size_t first = field.find_first_not_of(' ');
  const std::size_t last = field.find_last_not_of(' ');
  return first == std::string::npos ? "" : field.substr(first, last - first + 1);
}

std::vector<Malformed> read_index() {
  std::vector<Malformed> index;
  std::istringstream text(read_file(fixtures() + "/index.txt"));
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line.front() == '#') {
      continue;
    }
    std::istringstream fields(line);
    Malformed row;
    row.exit_code = std::stoi(next_field(fields));
    row.kind = next_field(fields);
    row.what = next_field(fields);
    row.fragment = next_field(fields);
    index.push_back(row);
  }
  return index;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from)) {
    text.replace(at, from.size(), to);
  }
}

// Splits at spaces. '' is an empty argument, \n a newline, \e an escape character, \xff a byte.
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) {
    replace_all(word, "''", "");
    replace_all(word, "\\n", "\n");
    replace_all(word, "\\e", "\x1b");
    replace_all(word, "\\xff", "\xff");
    words.push_back(word);
  }
  return words;
}

// The library with other constants of the time model, in a folder of their own.
class ChangedLibrary {
 public:
  // `change`: "text => other text", or "text =>", which leaves it out.
  explicit ChangedLibrary(const std::string& change) {
    namespace fs = std::filesystem;
    const fs::path data = fs::path(SHARDPLAN_SOURCE_DIR) / "data";
    for (const char* name : {"models", "gpus", "clusters", "frameworks", "arguments"}) {
      fs::create_directory_symlink(data / name, fs::path(folder_.path()) / name);
    }
    const std::string arrow = " =>";
    const std::size_t at = change.find(arrow);
    REQUIRE(at != std::string::npos);
    const std::string old = change.substr(0, at);
    std::string text = read_file((data / "time" / "constants.json").string());
    const std::size_t found = text.find(old);
    REQUIRE(found != std::string::npos);
    const std::string other = change.substr(at + arrow.size());
    text.replace(found, old.size(), other.empty() ? "" : other.substr(1));
    fs::create_directory(fs::path(folder_.path()) / "time");
    write_file(folder_.path() + "/time/constants.json", text);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryDirectory folder_;
};

std::vector<std::string> arguments_of(const Malformed& row, const std::string& out,
                                      const std::string& data) {
  const std::map<std::string, std::string> commands = {
      {"flags", ""},
      {"strict",
       "estimate --cluster 1x8-h200 --sequence-length 2048 --global-batch 8 --strict "
       "--format json --out {OUT}/result --model"},
      {"model",
       "estimate --cluster 1x8-h200 --sequence-length 2048 --global-batch 8 --format json "
       "--out {OUT}/result --model"},
      {"cluster",
       "estimate --model llama3-8b --sequence-length 8192 --global-batch 64 --tp 8 --format json "
       "--out {OUT}/result --cluster"},
      {"framework", "list --data {FIXTURES} --out {OUT}/result options"},
      {"case", "batch --format json --out {OUT}/result"},
      {"constants",
       "estimate --model llama3-8b --sequence-length 8192 --global-batch 64 --tp 8 "
       "--cluster 1x8-h200 --format json --out {OUT}/result --data {DATA}"},
  };
  std::string line = commands.at(row.kind) + " ";
  line += row.kind == "flags"       ? row.what
          : row.kind == "framework" ? std::filesystem::path(row.what).stem().string()
          : row.kind == "constants" ? ""
                                    : "{FIXTURES}/" + row.what;
  replace_all(line, "{JOB}", "{TRAINING} --model llama3-8b --cluster 1x8-h200");
  replace_all(line, "{MACHINE}", "--model llama3-8b --cluster 1x8-h200");
  replace_all(line, "{TRAINING}", "--sequence-length 8192 --global-batch 64");
  std::vector<std::string> words = split(line);
  for (std::string& word : words) {
    replace_all(word, "{OUT}", out);
    replace_all(word, "{DATA}", data);
    replace_all(word, "{FIXTURES}", fixtures());
    replace_all(word, "{LONG}", std::string(5000, 'x'));
  }
  return words;
}

bool is_printable(const std::string& line) {
  return std::ranges::none_of(line, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// One line, below which a second one may say what to write instead.
bool is_one_printable_line(const std::string& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos || end == 0 || text.back() != '\n') {
    return false;
  }
  const std::string behind = text.substr(end + 1, text.size() - end - 1);
  const bool is_hint =
      behind.starts_with("hint: ") && is_printable(behind.substr(0, behind.size() - 1));
  return is_printable(text.substr(0, end)) && (behind.empty() || is_hint);
}

// What is wrong with the program's answer to a malformed input; empty if nothing is.
std::string complaint(const Malformed& row, const ProgramRun& run, const std::string& out) {
  if (run.exit_code != row.exit_code) {
    return "exit code " + std::to_string(run.exit_code);
  }
  if (row.exit_code == 0) {
    return std::filesystem::exists(out + "/result") ? "" : "no result";
  }
  if (!is_one_printable_line(run.err)) {
    return "the message is not one printable line";
  }
  std::string fragment = row.fragment;
  replace_all(fragment, "{OUT}", out);
  if (run.err.size() > 1000) {
    return "the message has " + std::to_string(run.err.size()) + " bytes";
  }
  if (run.err.find(fragment) == std::string::npos) {
    return "the message lacks: " + fragment;
  }
  const std::string file = row.kind == "constants"
                               ? "/time/constants.json"
                               : std::filesystem::path(row.what).filename().string();
  const bool names_another = fragment.find(".json") != std::string::npos;
  if (row.kind != "flags" && !names_another && run.err.find(file) == std::string::npos) {
    return "the message does not name " + file;
  }
  if (!run.out.empty()) {
    return "something on stdout";
  }
  if (row.kind == "case") {  // a bad line is an answer too, so that the others get theirs
    const bool says_so = read_file(out + "/result").find("\"error\"") != std::string::npos;
    return says_so ? "" : "the result does not say that the line is in error";
  }
  return std::filesystem::is_empty(out) ? "" : "a file was left behind";
}

}  // namespace

TEST_CASE("every malformed input gives its exit code and one clear line, and nothing else") {
  for (const Malformed& row : read_index()) {
    const TemporaryDirectory out;
    std::optional<ChangedLibrary> library;
    if (row.kind == "constants") {
      library.emplace(row.what);
    }
    const ProgramRun run =
        run_shardplan(arguments_of(row, out.path(), library ? library->path() : ""));
    INFO(row.kind << " " << row.what);
    INFO("stderr: " << run.err);
    CHECK(complaint(row, run, out.path()) == "");
  }
}

TEST_CASE("the index names every fixture once, and at least 400 mistakes") {
  std::set<std::string> named;
  int mistakes = 0;
  for (const Malformed& row : read_index()) {
    CHECK_MESSAGE(named.insert(row.kind + " " + row.what).second, row.what << " is listed twice");
    mistakes += row.exit_code == 0 ? 0 : 1;
  }
  CHECK(mistakes >= 400);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(fixtures())) {
    const std::string path = std::filesystem::relative(entry.path(), fixtures());
    const bool listed =
        std::any_of(named.begin(), named.end(), [&path](const std::string& kind_and_path) {
          return kind_and_path.find(path) != std::string::npos;
        });
    CHECK_MESSAGE((listed || entry.is_directory() || path == "index.txt" || path == "mistakes.txt"),
                  path << " is not in the index");
  }
}

TEST_CASE("files made to exhaust the reader are refused before they cost much") {
  struct Bomb {
    std::string name;
    std::string text;
  };
  const std::size_t million = 1'000'000;
  std::string wide = "[0";
  for (std::size_t i = 0; i < 2 * million; ++i) { wide += ",0"; }
  std::string objects;
  for (std::size_t i = 0; i < million; ++i) { objects += "{\"\":"; }
  const std::array<Bomb, 5> bombs = {{
      {.name = "a million arrays deep", .text = std::string(million, '[')},
      {.name = "a million objects deep", .text = objects},
      {.name = "two million numbers wide", .text = wide + "]"},
      {.name = "one string of 8 MB", .text = "\"" + std::string(8 * million, 'x') + "\""},
      {.name = "70 MB of white space", .text = std::string(70 * million, ' ') + "{}"},
  }};
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/bomb.json";
  for (const Bomb& bomb : bombs) {
    write_file(path, bomb.text);
    const ProgramRun run = run_shardplan({"estimate", "--model", path, "--cluster", "1x8-h200",
                                          "--sequence-length", "2048", "--global-batch", "8"});
    INFO(bomb.name << ": " << run.err);
    CHECK(run.exit_code == 2);
    CHECK(is_one_printable_line(run.err));
    CHECK(run.err.find("bomb.json:") != std::string::npos);
#ifndef __SANITIZE_ADDRESS__
    CHECK(run.cpu_s < 1);
    CHECK(run.memory_bytes < std::int64_t{300} << 20);
#endif
  }
}

}  // namespace shardplan
