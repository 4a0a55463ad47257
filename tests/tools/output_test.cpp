#include "tools/output.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

std::int64_t entries_in(const std::string& directory) {
  const std::filesystem::directory_iterator first(directory);
  return std::distance(first, std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("a file appears when it is committed and not before") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/answer.json";
  Output output(path);
  output.write("one\n");
  CHECK(!std::filesystem::exists(path));
  output.write("two\n");
  output.commit();
  CHECK(read_file(path) == "one\ntwo\n");
  CHECK(entries_in(directory.path()) == 1);
}

TEST_CASE("an output that is not committed leaves the old file and nothing else") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/answer.json";
  write_file(path, "old");
  {
    Output output(path);
    output.write("half of the ans");
  }
  CHECK(read_file(path) == "old");
  CHECK(entries_in(directory.path()) == 1);
}

TEST_CASE("a signal removes every file that was not committed, and no other") {
  const TemporaryDirectory directory;
  const auto path = [&](const char* name) { return directory.path() + "/" + name; };
  const pid_t child = fork();
  if (child == 0) {
    Output first(path("first"));
    Output second(path("second"));
    second.write("whole");
    second.commit();
    Output third(path("third"));
    Output fourth(path("fourth"));
    std::raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(read_file(path("second")) == "whole");
  CHECK(entries_in(directory.path()) == 1);
}

TEST_CASE("a replaced file keeps its permissions") {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/answer.json";
  write_file(path, "old");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  Output output(path);
  output.write("new");
  output.commit();
  CHECK(read_file(path) == "new");
  CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms::owner_all);
}

TEST_CASE("what a link leads to is replaced or made, and the link stays") {
  const TemporaryDirectory directory;
  const std::string link = directory.path() + "/link";
  const std::string target = directory.path() + "/folder/target";
  std::filesystem::create_directory(directory.path() + "/folder");
  std::filesystem::create_symlink("folder/between", link);
  std::filesystem::create_symlink("target", directory.path() + "/folder/between");
  for (const char* text : {"new", "replaced"}) {
    Output output(link);
    output.write(text);
    output.commit();
    CHECK(std::filesystem::is_symlink(link));
    CHECK(!std::filesystem::is_symlink(target));
    CHECK(read_file(target) == text);
  }
  CHECK(entries_in(directory.path() + "/folder") == 2);
  const std::string loop = directory.path() + "/loop";
  std::filesystem::create_symlink("loop", loop);
  CHECK_THROWS_AS(Output output(loop), EnvironmentError);
}

TEST_CASE("folders and devices are not replaced") {
  const TemporaryDirectory directory;
  CHECK_THROWS_AS(Output output(directory.path()), EnvironmentError);
  CHECK_THROWS_AS(Output output("/dev/null"), EnvironmentError);
  CHECK_THROWS_AS(Output output(directory.path() + "/missing/answer.json"), EnvironmentError);
  CHECK(entries_in(directory.path()) == 0);
}

}  // namespace shardplan
