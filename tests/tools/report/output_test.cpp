#include "tools/report/output.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <filesystem>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

bool has_nameless_files = true;

}  // namespace
}  // namespace shardplan

// In the place of the C library's: a file system that may have no files without a name.
extern "C" int open(const char* path, int flags, ...) {  // NOLINT: the header's names are reserved
  va_list rest;
  va_start(rest, flags);
  const int mode = va_arg(rest, int);
  va_end(rest);
  if ((flags & O_TMPFILE) == O_TMPFILE && !shardplan::has_nameless_files) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace shardplan {
namespace {

// Both ways to make a file that appears complete or not at all.
template <class Check>
void with_and_without_nameless_files(const Check& check) {
  for (const bool has_them : {true, false}) {
    CAPTURE(has_them);
    has_nameless_files = has_them;
    check();
  }
  has_nameless_files = true;
}

// How a process that runs `body` ends: its exit code, or 128 and its signal.
template <class Body>
int end_of_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::int64_t entries_in(const std::string& directory) {
  const std::filesystem::directory_iterator first(directory);
  return std::distance(first, std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("a file appears when it is committed and not before") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    Output output(path);
    output.write("one\n");
    CHECK(!std::filesystem::exists(path));
    output.write("two\n");
    output.commit();
    CHECK(read_file(path) == "one\ntwo\n");
    CHECK(entries_in(directory.path()) == 1);
  });
}

TEST_CASE("an output that is not committed leaves the old file and nothing else") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    write_file(path, "old");
    {
      Output output(path);
      output.write("half of the ans");
    }
    CHECK(read_file(path) == "old");
    CHECK(entries_in(directory.path()) == 1);
  });
}

TEST_CASE("a signal removes every file that was not committed, and no other") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const auto path = [&](const char* name) { return directory.path() + "/" + name; };
    CHECK(end_of_child([&] {
            Output first(path("first"));
            Output second(path("second"));
            second.write("whole");
            second.commit();
            Output third(path("third"));
            Output fourth(path("fourth"));
            std::raise(SIGTERM);
          }) == 128 + SIGTERM);
    CHECK(read_file(path("second")) == "whole");
    CHECK(entries_in(directory.path()) == 1);
  });
}

TEST_CASE("what a killed process has left is in nobody's way") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    // As a container does, the same process number each time.
    write_file(path + ".tmp." + std::to_string(getpid()), "half");
    for (int i = 0; i < 3; ++i) {
      CHECK(end_of_child([&] {
              Output output(path);
              output.write("half");
              std::raise(SIGKILL);
            }) == 128 + SIGKILL);
    }
    CHECK(!std::filesystem::exists(path));
    CHECK(entries_in(directory.path()) == (has_nameless_files ? 1 : 4));
    for (const char* text : {"new", "replaced"}) {
      Output output(path);
      output.write(text);
      output.commit();
      CHECK(read_file(path) == text);
    }
    CHECK(entries_in(directory.path()) == (has_nameless_files ? 2 : 5));
  });
}

TEST_CASE("a file beyond the size limit is an error, and nothing of it is left") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    CHECK(end_of_child([&] {
            ignore_write_signals();
            const rlimit few = {.rlim_cur = 100, .rlim_max = 100};
            setrlimit(RLIMIT_FSIZE, &few);
            std::string heard;
            try {
              Output output(path);
              output.write(std::string(200, 'a'));
            } catch (const EnvironmentError& error) { heard = error.what(); }
            _exit(heard == path + ": cannot write: File too large" ? 3 : 4);
          }) == 3);
    CHECK(entries_in(directory.path()) == 0);
  });
}

TEST_CASE("a new file has the permissions that the process gives files") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    const mode_t before = umask(0026);
    Output output(path);
    output.commit();
    umask(before);
    CHECK(static_cast<int>(std::filesystem::status(path).permissions()) == 0640);
  });
}

TEST_CASE("a replaced file keeps its permissions") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/answer.json";
    write_file(path, "old");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    Output output(path);
    output.write("new");
    output.commit();
    CHECK(read_file(path) == "new");
    CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms::owner_all);
  });
}

TEST_CASE("a file may have the longest name there is") {
  with_and_without_nameless_files([] {
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/" + std::string(255, 'a');
    for (const char* text : {"new", "replaced"}) {
      Output output(path);
      output.write(text);
      output.commit();
      CHECK(read_file(path) == text);
    }
    CHECK(entries_in(directory.path()) == 1);
  });
}

TEST_CASE("nohup keeps the signal of a terminal that hangs up away") {
  const TemporaryDirectory directory;
  CHECK(end_of_child([&] {
          std::signal(SIGHUP, SIG_IGN);
          Output output(directory.path() + "/answer.json");
          std::raise(SIGHUP);
          output.commit();
        }) == 0);
  CHECK(entries_in(directory.path()) == 1);
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
