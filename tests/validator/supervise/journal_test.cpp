#include "validator/supervise/journal.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace shardplan {
namespace {

class TemporaryFile {
 public:
  TemporaryFile() {
    path_ = (std::filesystem::temp_directory_path() /
             ("shardplan_journal_" + std::to_string(getpid()) + ".jsonl"))
                .string();
    std::filesystem::remove(path_);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }
  void append(const std::string& text) const { std::ofstream(path_, std::ios::app) << text; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("a journal gives back what was appended, in order") {
  const TemporaryFile file;
  {
    Journal journal(file.path());
    CHECK(journal.records().empty());
    journal.append("one");
    journal.append("two");
  }
  Journal journal(file.path());
  CHECK(journal.records() == std::vector<std::string>{"one", "two"});
  CHECK(journal.incomplete().empty());
  CHECK_THROWS_AS(journal.append("a\nb"), std::logic_error);
}

TEST_CASE("wherever the last line was cut off, the records before it stay and the next is whole") {
  const std::string record = R"({"key":"1","result":{}})";
  for (std::size_t length = 0; length <= record.size(); ++length) {
    const TemporaryFile file;
    Journal(file.path()).append("first");
    file.append(record.substr(0, length));
    {
      Journal journal(file.path());
      CHECK(journal.records() == std::vector<std::string>{"first"});
      CHECK(journal.incomplete() == record.substr(0, length));
      journal.append("next");
    }
    CHECK(file.text() == "first\nnext\n");
  }
}

TEST_CASE("a file stays as it is until a record is appended") {
  const TemporaryFile file;
  file.append("notes of mine");
  { const Journal journal(file.path()); }
  CHECK(file.text() == "notes of mine");
}

TEST_CASE("a record that has no room is an error with its reason, and the next one cuts it off") {
  const TemporaryFile file;
  const std::string record(100, 'a');
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit few = {.rlim_cur = 250, .rlim_max = 250};
    setrlimit(RLIMIT_FSIZE, &few);
    Journal journal(file.path());
    journal.append(record);
    journal.append(record);
    try {
      journal.append(record);
    } catch (const JournalError& error) {
      _exit(error.what() == file.path() + ": cannot be written: File too large" ? 0 : 2);
    }
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(file.text().size() == 250);
  Journal(file.path()).append("next");
  CHECK(Journal(file.path()).records() == std::vector<std::string>{record, record, "next"});
}

TEST_CASE("a journal has one writer at a time") {
  const TemporaryFile file;
  const Journal first(file.path());
  CHECK_THROWS_AS(Journal(file.path()), JournalError);
}

TEST_CASE("a journal behind a link is written where the link leads, which stays") {
  const TemporaryFile link;
  const std::string target = link.path() + ".target";
  std::filesystem::create_symlink(target, link.path());
  Journal(link.path()).append("one");
  CHECK(Journal(link.path()).records() == std::vector<std::string>{"one"});
  CHECK(std::filesystem::is_symlink(link.path()));
  CHECK(Journal(target).records() == std::vector<std::string>{"one"});
  std::filesystem::remove(target);
}

TEST_CASE("what is no file, or in a folder that is not there, is named") {
  const TemporaryFile file;
  std::filesystem::create_symlink("/dev/null", file.path());
  CHECK_THROWS_WITH(Journal(file.path()), (file.path() + ": is no regular file").c_str());
  CHECK_THROWS_WITH(Journal("/nowhere/j.jsonl"),
                    "/nowhere/j.jsonl: cannot be opened: No such file or directory");
}

}  // namespace shardplan
