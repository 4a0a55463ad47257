// Answers the questions of the corpus, for tools/check_corpus.
// usage: corpus_answers ROOT QUESTIONS [--part K/N]   a hash and a name for each answer
//        corpus_answers ROOT QUESTIONS --show NAME    the text of an answer
// ROOT is the repository whose fixtures are asked about; QUESTIONS a file of
// tests/corpus/questions: case lines (.jsonl), prices*.txt or commands*.txt. K of N: of N parts of
// the questions the one with number K, from 0.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <vector>

#include "data/read/text_file.h"
#include "tests/corpus/answers.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

// Fixtures by the names that questions have for them, so that an answer says the same wherever they
// lie. The ending is what `--from` knows a file by.
struct Fixtures {
  const char* name;
  const char* folder;
  const char* ending;
};
constexpr std::array kFixtures = std::to_array<Fixtures>({
    {.name = "measured", .folder = "data/measured", .ending = ""},
    {.name = "published", .folder = "data/published", .ending = ""},
    {.name = "layouts", .folder = "data/published/layouts", .ending = ""},
    {.name = "logs", .folder = "tests/tools/from/logs", .ending = ""},
    {.name = "configs", .folder = "tests/data/fixtures/model_config", .ending = ""},
    {.name = "bad_cases", .folder = "tests/malformed/cases", .ending = ""},
    {.name = "bad_clusters", .folder = "tests/malformed/clusters", .ending = ""},
    {.name = "bad_models", .folder = "tests/malformed/models", .ending = ""},
    {.name = "bad_runs", .folder = "tests/malformed/runs", .ending = ""},
    {.name = "scripts", .folder = "tests/fuzz/corpus/script", .ending = ".sh"},
    {.name = "yaml", .folder = "tests/fuzz/corpus/yaml", .ending = ".yaml"},
    {.name = "toml", .folder = "tests/fuzz/corpus/toml", .ending = ".toml"},
    {.name = "json", .folder = "tests/fuzz/corpus/json", .ending = ".json"},
    {.name = "run_logs", .folder = "tests/fuzz/corpus/log", .ending = ".log"},
    {.name = "oom_logs", .folder = "tests/fuzz/corpus/oom_log", .ending = ".log"},
});

// A folder with nothing but the fixtures, which is the current one as long as it lives.
class FixtureFolder {
 public:
  explicit FixtureFolder(const fs::path& root)
      : folder_((fs::temp_directory_path() / "shardplan-corpus-XXXXXX").string()) {
    if (mkdtemp(folder_.data()) == nullptr) {
      throw std::runtime_error("cannot make " + folder_);
    }
    fs::current_path(folder_);
    for (const Fixtures& fixtures : kFixtures) {
      fs::create_directory(fixtures.name);
      for (const auto& entry : fs::directory_iterator(root / fixtures.folder)) {
        const std::string name = entry.path().filename().string() + fixtures.ending;
        fs::create_symlink(fs::absolute(entry.path()), fs::path(fixtures.name) / name);
      }
    }
  }
  ~FixtureFolder() {
    fs::current_path(fs::temp_directory_path());
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  FixtureFolder(const FixtureFolder&) = delete;
  FixtureFolder& operator=(const FixtureFolder&) = delete;

 private:
  std::string folder_;
};

struct Part {
  std::int64_t number = 0;
  std::int64_t of = 1;
};

// Without empty lines and those that begin with '#'.
std::vector<std::string> read_questions(const std::string& path) {
  std::vector<std::string> questions;
  TextFile file(path);
  for (std::string line; file.next_line(line);) {
    if (!line.empty() && line.front() != '#') {
      questions.push_back(line);
    }
  }
  return questions;
}

void answer(const std::string& question, const std::string& file, const Library& library,
            const TakeAnswer& take) {
  if (file.ends_with(".jsonl")) {
    const std::string id = case_id_of(question);
    answer_case(question, library, [&](const std::string& name, const std::string& text) {
      take(id + "/" + name, text);
    });
  } else if (fs::path(file).filename().string().starts_with("prices")) {
    answer_prices(question, library, take);
  } else {
    answer_command(question, [&](const std::string& /*name*/, const std::string& text) {
      take(question, text);
    });
  }
}

// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) { hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3; }
  return hash;
}

void answer_part(const std::string& file, Part part) {
  const Library library;
  const std::vector<std::string> questions = read_questions(file);
  const std::int64_t count = std::ssize(questions);
  for (std::int64_t i = count * part.number / part.of; i < count * (part.number + 1) / part.of;
       ++i) {
    answer(questions[static_cast<std::size_t>(i)], file, library,
           [](const std::string& name, const std::string& text) {
             std::printf("%016llx  %s\n", static_cast<unsigned long long>(hash_of(text)),
                         name.c_str());
             std::fflush(stdout);
           });
  }
}

// False: there is no such answer.
bool show(const std::string& file, const std::string& wanted) {
  const Library library;
  bool is_shown = false;
  for (const std::string& question : read_questions(file)) {
    const bool may_have_it =
        file.ends_with(".jsonl")
            ? wanted.starts_with(case_id_of(question) + "/")
            : question == wanted ||
                  wanted.starts_with(question.substr(0, question.find(' ')) + "/");
    if (may_have_it) {
      answer(question, file, library, [&](const std::string& name, const std::string& text) {
        if (name == wanted) {
          std::fwrite(text.data(), 1, text.size(), stdout);
          is_shown = true;
        }
      });
    }
  }
  return is_shown;
}

int run(const std::vector<std::string>& words) {
  const fs::path root = fs::absolute(words[0]);
  const std::string file = fs::absolute(words[1]).string();
  const FixtureFolder folder(root);
  if (words.size() == 4 && words[2] == "--show") {
    return show(file, words[3]) ? 0 : 1;
  }
  Part part;
  if (words.size() == 4) {
    part.number = std::atoll(words[3].c_str());
    part.of = std::atoll(words[3].substr(words[3].find('/') + 1).c_str());
  }
  answer_part(file, part);
  return 0;
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool has_option = words.size() == 4 && (words[2] == "--part" || words[2] == "--show");
  if (words.size() != 2 && !has_option) {
    std::fprintf(stderr, "usage: corpus_answers ROOT QUESTIONS [--part K/N | --show NAME]\n");
    return 2;
  }
  try {
    return shardplan::run(words);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "corpus_answers: %s\n", problem.what());
    return 3;
  }
}
