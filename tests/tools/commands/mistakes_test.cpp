// Every line of tests/malformed/mistakes.txt through the built program: the exit code, and the
// words that help whoever typed it.
#include <doctest/doctest.h>

#include <array>
#include <set>
#include <sstream>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

struct Mistake {
  int number = 0;  // of the list of mistakes that people were seen to make
  int exit_code = 0;
  std::string arguments;
  std::vector<std::string> must;  // stand in the answer
  std::vector<std::string> must_not;
};

std::string fixtures() {
  return std::string(SHARDPLAN_SOURCE_DIR) + "/tests/malformed";
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// The parts between separators, without blanks around them and without empty ones.
std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, separator);) {
    if (part = trimmed(part); !part.empty()) {
      parts.push_back(part);
    }
  }
  return parts;
}

std::vector<Mistake> read_mistakes() {
  std::vector<Mistake> mistakes;
  std::istringstream text(read_file(fixtures() + "/mistakes.txt"));
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line.front() == '#') {
      continue;
    }
    std::istringstream stream(line);
    std::array<std::string, 5> fields;
    for (std::string& field : fields) {
      std::getline(stream, field, '|');
      field = trimmed(field);
    }
    mistakes.push_back({.number = std::stoi(fields[0]),
                        .exit_code = std::stoi(fields[1]),
                        .arguments = fields[2],
                        .must = parts_of(fields[3], ';'),
                        .must_not = parts_of(fields[4], ';')});
  }
  return mistakes;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// Splits at blanks outside of double quotes.
std::vector<std::string> words_of_line(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool is_quoted = false;
  for (const char letter : line + " ") {
    if (letter == '"') {
      is_quoted = !is_quoted;
    } else if (letter == ' ' && !is_quoted) {
      if (!word.empty()) {
        words.push_back(word);
      }
      word.clear();
    } else {
      word += letter;
    }
  }
  return words;
}

std::vector<std::string> arguments_of(const Mistake& mistake, const std::string& out) {
  std::string line = mistake.arguments;
  replace_all(line, "{JOB}", "{TRAINING} --model llama3-8b --cluster 1x8-h200");
  replace_all(line, "{MACHINE}", "--model llama3-8b --cluster 1x8-h200");
  replace_all(line, "{TRAINING}", "--sequence-length 8192 --global-batch 64");
  replace_all(line, "{FIXTURES}", fixtures());
  replace_all(line, "{EXAMPLES}", std::string(SHARDPLAN_SOURCE_DIR) + "/data/examples");
  replace_all(line, "{OUT}", out);
  return words_of_line(line);
}

// Lines are as wide as the terminal: what they say does not depend on where they break.
std::string on_one_line(const std::string& text) {
  std::istringstream stream(text);
  std::string line;
  for (std::string word; stream >> word;) { line += (line.empty() ? "" : " ") + word; }
  return line;
}

}  // namespace

TEST_CASE("what people type who have not read the help is understood, or helped on") {
  for (const Mistake& mistake : read_mistakes()) {
    const TemporaryDirectory out;
    const ProgramRun run = run_shardplan(arguments_of(mistake, out.path()));
    const std::string answer = on_one_line(run.out + " " + run.err);
    INFO(mistake.number << ": " << mistake.arguments);
    INFO("stderr: " << run.err);
    CHECK(run.exit_code == mistake.exit_code);
    for (const std::string& words : mistake.must) {
      CHECK_MESSAGE(answer.find(words) != std::string::npos, "missing: " << words);
    }
    for (const std::string& words : mistake.must_not) {
      CHECK_MESSAGE(answer.find(words) == std::string::npos, "must not stand there: " << words);
    }
    CHECK_MESSAGE(run.err.size() <= 1000, "the message has " << run.err.size() << " bytes");
    CHECK((run.exit_code != 2 || run.out.find("UNSUPPORTED") != std::string::npos ||
           run.out.empty()));
  }
}

TEST_CASE("the list of mistakes leaves none of its numbers out") {
  constexpr int kMistakes = 64;
  std::set<int> numbers;
  for (const Mistake& mistake : read_mistakes()) { numbers.insert(mistake.number); }
  for (int number = 1; number <= kMistakes; ++number) {
    CHECK_MESSAGE(numbers.contains(number), "no line of mistake " << number);
  }
}

}  // namespace shardplan
