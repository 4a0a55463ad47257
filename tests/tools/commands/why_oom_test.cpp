// Messages as PyTorch's releases write them, and what is found for them. Texts follow the format
// strings of c10/cuda/CUDACachingAllocator.cpp; numbers are ours.
#include "tools/commands/why_oom.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/plan/units.h"
#include "tests/tools/commands/answer.h"

namespace shardplan {
namespace {

std::vector<OomEvent> events_of(const std::string& text) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.log";
  write_file(path, text);
  TextFile log(path);
  return read_oom_log(log).events;
}

// Releases from 2.2 on.
std::string message(const std::string& prefix, const std::string& tried, const std::string& gpu,
                    const std::string& allocated) {
  return prefix + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + tried +
         ". GPU " + gpu +
         " has a total capacity of 139.80 GiB of which 1.01 GiB is free. Including non-PyTorch "
         "memory, this process has 138.78 GiB memory in use. Of the allocated memory " +
         allocated +
         " is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated. If "
         "reserved but unallocated memory is large try setting "
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n";
}

// Llama-3-8B over two stages, micro-batches far too large.
const std::vector<std::string> kRun = {"--model",
                                       "llama3-8b",
                                       "--cluster",
                                       "1x8-h200",
                                       "--sequence-length",
                                       "8192",
                                       "--global-batch",
                                       "64",
                                       "--micro-batch",
                                       "8",
                                       "--tp",
                                       "2",
                                       "--pp",
                                       "2"};

ProgramRun why_oom(const std::string& log, const std::vector<std::string>& more) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/run.log";
  write_file(path, log);
  std::vector<std::string> words = {"why-oom", path};
  words.insert(words.end(), kRun.begin(), kRun.end());
  words.insert(words.end(), more.begin(), more.end());
  return run_in_full(words);
}

// The row that `why-oom` names first for the log of a run that a case line describes.
void check_first_row(const std::string& log_text, const std::string& case_line,
                     const std::string& expected) {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  const std::string cases = directory.path() + "/case.jsonl";
  write_file(log, log_text);
  write_file(cases, case_line + "\n");
  const ProgramRun run = run_in_full({"why-oom", log, "--case", cases, "--format", "json"});
  REQUIRE(run.exit_code == 0);
  const std::string row = "\"row\":\"";
  const std::size_t first = run.out.find(row);
  REQUIRE(first != std::string::npos);
  CHECK(run.out.substr(first + row.size()).starts_with(expected + "\""));
}

}  // namespace

TEST_CASE("processes that hold more than any machine are counted without an overflow") {
  std::string others;
  for (int i = 0; i < 20; ++i) {
    others += "Process " + std::to_string(i) + " has 900000000.00 GiB memory in use. ";
  }
  const std::vector<OomEvent> events = events_of(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB. " +
      others + "this process has 1.00 GiB\n");
  REQUIRE(events.size() == 1);
  CHECK(events.front().num_others == 20);
  CHECK(events.front().usable_bytes() == 0);
}

TEST_CASE("what is no number is no size") {
  for (const std::string size : {"nan GiB", "inf GiB", "-nan GiB", "-1.00 GiB", "1e300 GiB"}) {
    CHECK_MESSAGE(events_of(message("", size, "0", "1.00 GiB")).empty(), size);
    const std::vector<OomEvent> events = events_of(message("", "2.00 GiB", "0", size));
    REQUIRE_MESSAGE(events.size() == 1, size);
    CHECK_MESSAGE(!events.front().allocated, size);
  }
}

TEST_CASE("sizes print as PyTorch prints them, and segments are what it asks of the driver") {
  CHECK(printed_bytes(512) == "512 bytes");
  CHECK(printed_bytes(1024) == "1024 bytes");
  CHECK(printed_bytes(1536) == "1.50 KiB");
  CHECK(printed_bytes(20 * kMiB) == "20.00 MiB");
  CHECK(printed_bytes(kGiB) == "1024.00 MiB");
  CHECK(printed_bytes(2 * kGiB) == "2.00 GiB");
  CHECK(segment_bytes(1) == 2 * kMiB);
  CHECK(segment_bytes(kMiB) == 2 * kMiB);
  CHECK(segment_bytes(kMiB + 512) == 20 * kMiB);
  CHECK(segment_bytes(10 * kMiB - 512) == 20 * kMiB);
  CHECK(segment_bytes(10 * kMiB - 1) == 10 * kMiB);  // rounded up to 512 bytes before
  CHECK(segment_bytes(10 * kMiB) == 10 * kMiB);
  CHECK(segment_bytes(10 * kMiB + 512) == 12 * kMiB);
}

TEST_CASE("a message of 2.2 and later gives every number it has") {
  const std::vector<OomEvent> events =
      events_of(message("[rank5]: ", "1.75 GiB", "5", "133.20 GiB"));
  REQUIRE(events.size() == 1);
  const OomEvent& event = events[0];
  CHECK(event.rank == 5);
  CHECK(event.gpu == 5);
  CHECK(event.line == 1);
  CHECK(event.tried->text == "1.75 GiB");
  CHECK(event.tried->covers(1879048192));
  CHECK_FALSE(event.tried->covers(1879048192 + 8 * kMiB));
  CHECK(event.capacity->text == "139.80 GiB");
  CHECK(event.free->text == "1.01 GiB");
  CHECK(event.process->text == "138.78 GiB");
  CHECK(event.allocated->text == "133.20 GiB");
  CHECK(event.reserved->text == "135.10 GiB");
  CHECK_FALSE(event.last_step.has_value());
}

TEST_CASE("older messages differ in spelling, order and punctuation") {
  // 2.0 and 2.1.
  OomEvent event = events_of(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 3 has a "
      "total capacty of 79.15 GiB of which 0 bytes is free. Process 4711 has 79.10 GiB memory in "
      "use. Of the allocated memory 70.44 GiB is allocated by PyTorch, and 3.16 MiB is reserved by "
      "PyTorch but unallocated.")[0];
  CHECK(event.gpu == 3);
  CHECK(event.tried->text == "64.00 MiB");
  CHECK(event.capacity->text == "79.15 GiB");
  CHECK(event.free->text == "0 bytes");
  CHECK_FALSE(event.process.has_value());  // another one, or this one seen from a container
  CHECK(event.allocated->text == "70.44 GiB");
  // 1.x.
  event = events_of(
      "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total "
      "capacity; 8.77 GiB already allocated; 19.75 MiB free; 13.71 GiB reserved in total by "
      "PyTorch)")[0];
  CHECK(event.gpu == 0);
  CHECK(event.tried->text == "2.87 GiB");
  CHECK(event.capacity->text == "14.76 GiB");
  CHECK(event.free->text == "19.75 MiB");
  CHECK(event.allocated->text == "8.77 GiB");
  CHECK(event.reserved->text == "13.71 GiB");
  // 1.0 to 1.3: cached is what is not allocated, as its comment says of "the only remaining".
  event = events_of(
      "RuntimeError: CUDA out of memory. Tried to allocate 32.00 MiB (GPU 0; 4.00 GiB total "
      "capacity; 2.92 GiB already allocated; 3.60 MiB free; 8.01 MiB cached)")[0];
  CHECK(event.allocated->text == "2.92 GiB");
  CHECK(event.reserved->text == "2.93 GiB");
  // Other spellings of the same units.
  event = events_of(
      "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GB (GPU 0; 4.00 GB total "
      "capacity; 2.92 GB already allocated; 3.60 MB free; 3.00 GB reserved in total by "
      "PyTorch)")[0];
  CHECK(event.tried->covers(3 * kGiB / 2));
  CHECK(event.free->middle() / kMiB == 3);
  // With a limit set by the process, and with private pools.
  event = events_of(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of 79.10 GiB of "
      "which 30.00 GiB is free. Including non-PyTorch memory, this process has 49.10 GiB memory in "
      "use. 48.00 GiB allowed; Of the allocated memory 46.50 GiB is allocated by PyTorch, with "
      "1.20 GiB allocated in private pools (e.g., CUDA Graphs), and 0.50 GiB is reserved by "
      "PyTorch but unallocated.")[0];
  CHECK(event.allocated->text == "46.50 GiB");
  CHECK(event.reserved->text == "47.00 GiB");
  CHECK(event.process->text == "49.10 GiB");
}

TEST_CASE("what other processes hold of the GPU is not the run's to use") {
  const std::string words =
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.00 GiB of "
      "which 1.00 GiB is free. Process 17 has 20.00 GiB memory in use. Process 18 has 512.00 MiB "
      "memory in use. Including non-PyTorch memory, this process has 57.00 GiB memory in use. Of "
      "the allocated memory 55.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch "
      "but unallocated.";
  const OomEvent event = events_of(words)[0];
  CHECK(event.num_others == 2);
  CHECK(event.others_bytes == 20 * kGiB + kGiB / 2);
  CHECK(event.usable_bytes() == 79 * kGiB - event.others_bytes);
  CHECK(event.process->text == "57.00 GiB");
  const ProgramRun run = why_oom(words, {});
  CHECK(contains(run.out, "2 other processes hold 20.50 GiB of this GPU"));
  CHECK(contains(run.out, "58.50 GiB"));
}

TEST_CASE("colours of a terminal are no part of a message") {
  std::string coloured = message("[rank2]: ", "\x1b[1;36m1.75\x1b[0m GiB", "2", "133.20 GiB");
  coloured.replace(coloured.find("139.80"), 6, "\x1b[1m139.80\x1b[m");
  const OomEvent event = events_of(coloured)[0];
  CHECK(event.tried->text == "1.75 GiB");
  CHECK(event.capacity->text == "139.80 GiB");
}

TEST_CASE("a process that the host ended is told from a GPU that was full") {
  for (const std::string line :
       {"slurmstepd: error: Detected 1 oom_kill event in StepId=1.0",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "  exitcode  : -9 (pid: 4711)", "traceback : Signal 9 (SIGKILL) received by PID 4711",
        "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed. ",
        "Memory cgroup out of memory: oom-kill:constraint=CONSTRAINT_MEMCG"}) {
    CAPTURE(line);
    const ProgramRun run = why_oom("iteration 3/ 100\n" + line + "\n", {});
    CHECK(run.exit_code == 1);
    CHECK(run.out.starts_with("no match: "));
    CHECK(contains(run.out, "line 2 tells of a process that the host ended"));
  }
  CHECK_FALSE(contains(why_oom("all went well\n", {}).out, "host"));
}

TEST_CASE("a rank that the job has not is told") {
  const ProgramRun run = why_oom(message("[rank12]: ", "1.75 GiB", "4", "133.21 GiB"), {});
  CHECK(contains(run.err, "line 1 of the log: found rank 12, expected one of the 8 of this job"));
}

TEST_CASE("a process of which the driver says 0 bytes holds no negative memory outside PyTorch") {
  std::string text = message("[rank0]: ", "1.75 GiB", "0", "133.21 GiB");
  text.replace(text.find("138.78 GiB"), 10, "0 bytes");
  const ProgramRun run = why_oom(text, {});
  CHECK_FALSE(contains(run.out, "outside PyTorch -"));
}

TEST_CASE("ranks, steps and copies are told apart in a log that many processes write") {
  const std::string torn = message("[rank1]: ", "1.75 GiB", "1", "133.21 GiB");
  const std::string log =
      " [2026-11-02 03:01:18] iteration        2/     100 | consumed samples: 64 |\n" +
      message("[rank5]: ", "1.75 GiB", "5", "133.20 GiB") + "[default2]:some words of another " +
      torn.substr(0, torn.size() - 1) + message(" [rank3]: ", "2.00 GiB", "3", "1.00 GiB") +
      "\x1b[31mstep:  7  loss: 1.0\n gradient_accumulation_steps: 9\n max-steps: 20000\n" +
      message("3: ", "4.00 GiB", "3", "9.00 GiB") + "Root Cause (first observed failure):\n" +
      message("", "1.75 GiB", "5", "133.20 GiB") +
      "step: 8\n[rank6]: ncclUnhandledCudaError: Cuda failure 2 'out of memory'\n";
  const std::vector<OomEvent> events = events_of(log);
  REQUIRE(events.size() == 5);
  CHECK(events[0].rank == 5);
  CHECK(events[0].repeats == 2);
  CHECK(events[0].last_step == 2);
  CHECK(events[1].rank == 1);
  CHECK(events[2].rank == 3);
  CHECK(events[2].line == 3);
  CHECK(events[3].rank == 3);
  CHECK(events[3].last_step == 7);
  CHECK(events[4].rank == 6);
  CHECK(events[4].outside == "NCCL");
  CHECK_FALSE(events[4].tried.has_value());
}

TEST_CASE("libraries that run out of memory beside the allocator are known by their words") {
  const std::vector<std::pair<std::string, std::string>> messages = {
      {"n1:30:31 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'", "NCCL"},
      {"[rank4]: Failed to CUDA calloc async 608 bytes", "NCCL"},
      {"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
       "cuBLAS"},
      {"cuDNN Error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "cuDNN"},
      {"torch.AcceleratorError: CUDA error: out of memory", "the CUDA driver"},
      {"RuntimeError: CUDA driver error: out of memory", "the CUDA driver"},
      {"common/cast_transpose.cu:200 in function f: CUDA Error: out of memory",
       "Transformer Engine"},
      {"RuntimeError: Triton Error [CUDA]: out of memory", "Triton"},
  };
  for (const auto& row : messages) {
    const auto& text = row.first;
    const auto& owner = row.second;
    CAPTURE(text);
    const std::vector<OomEvent> events = events_of(text + "\n");
    REQUIRE(events.size() == 1);
    CHECK(events[0].outside == owner);
  }
}

TEST_CASE("sentences of a message on lines of their own belong to it, behind a prefix or not") {
  for (const std::string prefix : {"", "  ", "[rank2]: ", "2026-01-02 03:04:05,678 - ERROR - "}) {
    for (const std::string between : {" ", "\n"}) {
      const std::string first = "CUDA out of memory." + between + (between == " " ? "" : prefix);
      CAPTURE(prefix);
      const std::vector<OomEvent> events = events_of(
          "step: 4\n" + prefix + "torch.OutOfMemoryError: " + first +
          "Tried to allocate 1.36 GiB.\n" + prefix +
          "GPU 0 has a total capacity of 23.65 GiB of which 1.30 GiB is free.\n" + prefix +
          "Process 7 has 1.00 GiB memory in use.\n" + prefix +
          "Including non-PyTorch memory, this process has 21.35 GiB memory in use.\n" + prefix +
          "Of the allocated memory 20.73 GiB is allocated by PyTorch, and 0.12 GiB is reserved by "
          "PyTorch but unallocated.\n" +
          "step: 5\n" + prefix + "torch.OutOfMemoryError: CUDA out of memory. " +
          "Tried to allocate 2.00 GiB.\nGPU utilization 98 %\n");
      REQUIRE(events.size() == 2);
      CHECK(events[0].line == 2);
      CHECK(events[0].last_step == 4);
      CHECK(events[0].gpu == 0);
      CHECK(events[0].capacity->text == "23.65 GiB");
      CHECK(events[0].num_others == 1);
      CHECK(events[0].process->text == "21.35 GiB");
      CHECK(events[0].allocated->text == "20.73 GiB");
      CHECK(events[0].reserved->text == "20.85 GiB");
      CHECK(events[1].line == (between == " " ? 8 : 9));
      CHECK(events[1].last_step == 5);
      CHECK_FALSE(events[1].gpu.has_value());
    }
  }
}

// Broken as `fold` does, in the middle of words, or as a logger does, between them.
std::string wrapped(const std::string& text, std::size_t width, bool keeps_words,
                    const std::string& before) {
  std::string lines;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(text.size(), at + width);
    const std::size_t space = text.rfind(' ', end);
    end = keeps_words && end < text.size() && space > at ? space : end;
    lines += (at == 0 ? "" : before) + text.substr(at, end - at) + "\n";
    at = keeps_words && end < text.size() ? end + 1 : end;
  }
  return lines;
}

TEST_CASE("a message that a terminal or a logger has broken into lines is read as one") {
  std::string text = message("[rank3]: ", "1.75 GiB", "3", "133.21 GiB");
  text.pop_back();
  const std::string old =
      "RuntimeError: CUDA out of memory. Tried to allocate 1.75 GiB (GPU 3; 31.75 GiB total "
      "capacity; 28.50 GiB already allocated; 1.12 GiB free; 29.00 GiB reserved in total by "
      "PyTorch)";
  for (std::size_t width = 56; width < 200; width += 1 + width / 20) {
    for (const bool keeps_words : {false, true}) {
      for (const std::string before : {"", "      ", "[rank3]:"}) {
        if (!keeps_words && before.starts_with(' ')) {
          continue;  // who indents breaks between words
        }
        CAPTURE(width);
        CAPTURE(before);
        const auto events =
            events_of("step: 7\n" + wrapped(text, width, keeps_words, before) + "step: 8\n" +
                      wrapped(old, width, keeps_words, before == "[rank3]:" ? "" : before));
        REQUIRE(events.size() == 2);
        CHECK(events[0].line == 2);
        CHECK(events[0].rank == 3);
        CHECK(events[0].gpu == 3);
        CHECK(events[0].last_step == 7);
        CHECK(events[0].tried->text == "1.75 GiB");
        CHECK(events[0].capacity->text == "139.80 GiB");
        CHECK(events[0].free->text == "1.01 GiB");
        CHECK(events[0].process->text == "138.78 GiB");
        CHECK(events[0].allocated->text == "133.21 GiB");
        CHECK(events[0].reserved->text == "135.11 GiB");
        CHECK(events[1].last_step == 8);
        CHECK(events[1].capacity->text == "31.75 GiB");
        CHECK(events[1].allocated->text == "28.50 GiB");
        CHECK(events[1].reserved->text == "29.00 GiB");
      }
    }
  }
}

TEST_CASE("pieces of a message may stand behind the prefix of a logger, with another time") {
  const auto events = events_of(
      "2026-01-02 03:04:05,678 - ERROR - torch.OutOfMemoryError: CUDA out of memory. Tried to "
      "alloc\n"
      "2026-01-02 03:04:05,679 - ERROR - ate 1.75 GiB. GPU 3 has a total capacity of 139.80 GiB of "
      "which 1.01 \n"
      "2026-01-02 03:04:06,001 - ERROR - GiB is free. Of the allocated memory 133.21 GiB is "
      "allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated.\n");
  REQUIRE(events.size() == 1);
  CHECK(events[0].tried->text == "1.75 GiB");
  CHECK(events[0].free->text == "1.01 GiB");
  CHECK(events[0].allocated->text == "133.21 GiB");
}

TEST_CASE("a line that is cut off takes no lines from what follows") {
  const auto events = events_of(
      "[rank0]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a\n"
      "step: 4\n" +
      message("[rank1]: ", "1.75 GiB", "1", "133.21 GiB"));
  REQUIRE(events.size() == 2);
  CHECK(events[0].tried->text == "2.00 GiB");
  CHECK_FALSE(events[0].capacity.has_value());
  CHECK(events[1].last_step == 4);
  CHECK(events[1].rank == 1);
}

TEST_CASE("more than any memory is a wrong size, not a full GPU") {
  const ProgramRun run = why_oom(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.\n", {});
  CHECK(run.exit_code == 1);
  CHECK(contains(run.out, "line 1 asks for more than 1 EB: that size is wrong"));
  CHECK_FALSE(contains(why_oom("all went well\n", {}).out, "EB"));
}

TEST_CASE("words that only look like a message are none") {
  CHECK(events_of("").empty());
  CHECK(events_of("Tried to allocate memory\nTried to allocate 12 apples\nTried to allocate ")
            .empty());
}

TEST_CASE("the rows whose segment prints as the message are found, on the stage of the rank") {
  const ProgramRun run =
      why_oom("iteration 2/ 100\n" + message("[rank1]: ", "1.75 GiB", "1", "133.21 GiB") +
                  message("[rank0]: ", "1.75 GiB", "0", "133.21 GiB"),
              {"--format", "json"});
  INFO(run.err);
  CHECK(run.exit_code == 0);
  const std::string out = run.out;
  CHECK(contains(out, "\"ranks\":[0,1],\"stages\":[0]"));
  CHECK(contains(out, "\"last_step\":2"));
  // 2 f T / t elements of two bytes: fc1's output and its gradient.
  CHECK(contains(out, "\"row\":\"layer.dense.ffn.fc1_output\",\"bytes\":1879048192"));
  CHECK(contains(out, "\"row\":\"layer.dense.ffn.fc1_gradient\",\"bytes\":1879048192"));
  CHECK(contains(out, "\"moment\":\"last warm-up forward\""));
  CHECK(contains(out, "\"exceeds_capacity\":true"));
  CHECK(contains(out, "\"status\":\"does_not_fit\""));
}

TEST_CASE("gradients are a list of weights until ZeRO-2 divides them") {
  // fp32 gradients of 128,256 / 2 x 4,096 words.
  const std::string log = message("[rank0]: ", "1002.00 MiB", "0", "133.21 GiB");
  const std::string row = "gradients.dense, a weight of 64,128 x 4,096";
  CHECK(contains(why_oom(log, {"--zero", "1"}).out, row));
  const ProgramRun divided = why_oom(log, {"--zero", "2"});
  CHECK(contains(divided.out, "gradients.dense") == false);
  CHECK(contains(divided.out, "could not allocate a segment of 1002.00 MiB"));
}

TEST_CASE("what the log says of the cause is told beside the estimate") {
  const std::string failure = message("[rank0]: ", "1.75 GiB", "0", "133.20 GiB");
  const std::string early = why_oom(failure, {}).out;
  CHECK(contains(early, "The estimate agrees"));
  CHECK_FALSE(contains(early, "steps before went through"));
  const std::string late = why_oom("iteration 400/ 1000\n" + failure, {}).out;
  CHECK(contains(late, "By the estimate no step fits, though some went through"));
  CHECK(contains(late, "steps before went through"));
  // 1.90 GiB are cached.
  const std::string pieces = "cached is more than was asked for, but in pieces";
  CHECK(contains(early, pieces));
  CHECK_FALSE(
      contains(why_oom(message("[rank0]: ", "2.00 GiB", "0", "133.20 GiB"), {}).out, pieces));
  CHECK_FALSE(contains(why_oom(failure, {"--framework-option", "allocator=caching_expandable"}).out,
                       pieces));
  // Of a micro-batch of one the estimate allocates some 40 GiB.
  const std::string other = "the log allocates more than the estimate ever does there";
  CHECK_FALSE(contains(early, other));
  CHECK(contains(why_oom(failure, {"--vpp", "1", "--recompute", "full"}).out, other));
}

TEST_CASE("every change offered fits when it is estimated by itself") {
  const ProgramRun run = why_oom(message("[rank0]: ", "1.75 GiB", "0", "133.21 GiB"), {});
  CHECK(run.exit_code == 0);
  REQUIRE(contains(run.out, "--micro-batch 4"));
  REQUIRE(contains(run.out, "--tp 4"));
  std::vector<std::string> words = {"estimate", "--gpu-memory", "139.8GiB"};
  words.insert(words.end(), kRun.begin(), kRun.end());
  CHECK(run_in_full(words).exit_code == 1);
  for (const auto& [option, value] :
       {std::pair<std::string, std::string>{"--micro-batch", "4"}, {"--tp", "4"}}) {
    std::vector<std::string> changed = words;
    *std::next(std::ranges::find(changed, option)) = value;
    const ProgramRun estimate = run_in_full(changed);
    INFO(estimate.out);
    CHECK(estimate.exit_code == 0);
  }
}

TEST_CASE("whoever sets the options of a change gets the memory and the time that it promises") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log, message("[rank0]: ", "1.75 GiB", "0", "133.21 GiB"));
  const std::string script = directory.path() + "/run.json";
  write_file(script, R"({"--num-layers": 32, "--hidden-size": 4096, "--ffn-hidden-size": 14336,
    "--swiglu": true, "--num-attention-heads": 32, "--group-query-attention": true, "--bf16": true,
    "--num-query-groups": 8, "--seq-length": 8192, "--max-position-embeddings": 8192,
    "--normalization": "RMSNorm", "--disable-bias-linear": true, "--vocab-size": 128256,
    "--position-embedding-type": "rope", "--untie-embeddings-and-output-weights": true,
    "--micro-batch-size": 8, "--global-batch-size": 64, "--attention-dropout": 0,
    "--hidden-dropout": 0, "--pipeline-model-parallel-size": 2,
    "--decoder-first-pipeline-num-layers": 15, "--use-distributed-optimizer": true})");
  const Words job = {"--model",           "llama3-8b", "--cluster",     "1x8-h200",
                     "--sequence-length", "8192",      "--micro-batch", "8"};
  const auto with = [&](const Words& more) {
    Words words = job;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  std::int64_t changes = 0;
  for (const Words& run :
       {with({"--global-batch", "64"}), with({"--num-microbatches", "2"}),
        with({"--global-batch", "64", "--tp", "2", "--sequence-parallel", "off", "--dp", "4"}),
        Words{"--model", "mixtral-8x7b", "--cluster", "4x8-h200", "--sequence-length", "8192",
              "--global-batch", "256", "--micro-batch", "8", "--tp", "2"},
        Words{"--from", script, "--cluster", "1x8-h200"}}) {
    Words asked = {"why-oom", log, "--gpu-memory", "139GiB", "--format", "json"};
    asked.insert(asked.end(), run.begin(), run.end());
    const JsonValue answer = json_of(run_in_full(asked));
    for (const JsonValue& change : at(answer, "changes").items) {
      const std::string text = at(change, "change").string;
      CAPTURE(text);
      Words estimate = {"estimate", "--gpu-memory", "139GiB", "--format", "json"};
      const Words changed = with_options(run, text.substr(0, text.find(" (")));
      estimate.insert(estimate.end(), changed.begin(), changed.end());
      const JsonValue predicted = at(json_of(run_in_full(estimate)), "predicted");
      CHECK(at(predicted, "status").string == at(change, "status").string);
      CHECK(at(predicted, "step_time_s").real == at(change, "step_time_s").real);
      ++changes;
    }
  }
  CHECK(changes > 9);
}

TEST_CASE("more GPUs are offered where sharding over them makes the plan fit, and only there") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  write_file(log,
             "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1002.00 MiB. "
             "GPU 0 has a total capacity of 79.10 GiB of which 0.12 GiB is free.\n");
  const Words run = {"--model",           "llama3-70b", "--cluster",     "1x8-h100",
                     "--sequence-length", "4096",       "--micro-batch", "1",
                     "--framework",       "torchtitan", "--recompute",   "full",
                     "--num-gpus",        "8"};
  const auto changes = [&](const Words& more) {
    Words words = {"why-oom", log};
    words.insert(words.end(), run.begin(), run.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words).out;
  };
  const auto fits = [&](const std::string& options) {
    Words words = {"estimate"};
    const Words changed = with_options(run, options);
    words.insert(words.end(), changed.begin(), changed.end());
    return run_in_full(words).exit_code == 0;
  };
  CHECK(contains(changes({"--global-batch", "256", "--zero", "3"}), "  --num-gpus 32\n"));
  CHECK(fits("--global-batch 256 --zero 3 --num-gpus 32"));
  CHECK_FALSE(fits("--global-batch 256 --zero 3 --num-gpus 16"));
  CHECK(contains(changes({"--num-microbatches", "2", "--zero", "3", "--dp", "8"}),
                 "  --num-gpus 32 --dp 32\n"));
  CHECK_FALSE(contains(changes({"--global-batch", "8", "--zero", "3"}), "--num-gpus"));  // no batch
  CHECK_FALSE(contains(changes({"--global-batch", "256", "--zero", "0"}), "--num-gpus"));
}

TEST_CASE("no match is an answer, and so is a log without a message") {
  const ProgramRun other = why_oom(message("[rank0]: ", "1.23 GiB", "0", "133.21 GiB"), {});
  CHECK(other.exit_code == 1);
  CHECK(contains(other.out, "no match: no tensor of this estimate has that size"));
  const ProgramRun none = why_oom("all went well\n", {});
  CHECK(none.exit_code == 1);
  CHECK(none.out.starts_with("no match: "));
  const ProgramRun small = why_oom(message("[rank0]: ", "20.00 MiB", "0", "133.21 GiB"), {});
  CHECK(small.exit_code == 1);
  CHECK(contains(small.out, "small tensors share segments of this size"));
}

// eager_attention_forward of transformers: scores in bf16, their softmax in fp32.
TEST_CASE("scores that eager attention keeps under DeepSpeed are known by their size") {
  const Words run = {"--framework",
                     "deepspeed",
                     "--zero",
                     "3",
                     "--tp",
                     "1",
                     "--pp",
                     "1",
                     "--dp",
                     "8",
                     "--micro-batch",
                     "1",
                     "--sequence-length",
                     "4096",
                     "--global-batch",
                     "8"};
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  const auto answer = [&](const std::string& tried, const Words& more) {
    write_file(log, message("[rank3]: ", tried, "3", "77.08 GiB"));
    Words words = {"why-oom", log, "--model", "llama3-8b", "--cluster", "1x8-h100"};
    words.insert(words.end(), run.begin(), run.end());
    words.insert(words.end(), more.begin(), more.end());
    return run_in_full(words);
  };
  // 32 heads of 4096 x 4096.
  for (const auto& [tried, bytes] : {std::pair{"1.00 GiB", "2"}, std::pair{"2.00 GiB", "4"}}) {
    const ProgramRun found = answer(tried, {});
    CHECK(found.exit_code == 0);
    CHECK_MESSAGE(contains(found.out, std::string("32 heads x 4,096 x 4,096 x ") + bytes +
                                          " bytes x micro_batch 1. transformers' eager"),
                  found.out);
  }
  CHECK(contains(answer("2.00 GiB", {"--format", "json"}).out, "\"eager_score_bytes\":4"));
  CHECK_FALSE(contains(answer("1.50 GiB", {}).out, "eager"));
}

TEST_CASE("a failure of NCCL is held against what lies outside the allocator") {
  const ProgramRun run =
      why_oom("[rank7]: ncclUnhandledCudaError: Cuda failure 2 'out of memory'\n", {});
  CHECK(run.exit_code == 0);
  CHECK(contains(run.out, "ran out of memory in NCCL, outside PyTorch's allocator"));
  CHECK(contains(run.out, "communicator.tp"));
  CHECK_FALSE(contains(run.out, "layer.dense"));
}

TEST_CASE("a run may be told as a case line") {
  const TemporaryDirectory directory;
  const std::string log = directory.path() + "/run.log";
  const std::string cases = directory.path() + "/case.jsonl";
  write_file(log, message("[rank0]: ", "1.75 GiB", "0", "133.21 GiB"));
  const std::string line =
      R"({"schema": 1, "id": "a", "framework": "megatron", "model": "llama3-8b",)"
      R"( "cluster": "1x8-h200", "training": {"sequence_length": 8192, "micro_batch": 8,)"
      R"( "global_batch": 64}, "plan": {"tp": 2, "pp": 2}})";
  write_file(cases, line + "\n");
  const ProgramRun by_case = run_in_full({"why-oom", log, "--case", cases});
  CHECK(by_case.exit_code == 0);
  CHECK(contains(by_case.out, "layer.dense.ffn.fc1_output"));
  std::string misspelt = line;
  misspelt.insert(misspelt.size() - 1, R"(, "framework_version": "core_v9")");
  write_file(cases, misspelt + "\n");
  CHECK(contains(run_in_full({"why-oom", log, "--case", cases}).err, "warning: "));
  write_file(cases, line + "\n" + line + "\n");
  const ProgramRun twice = run_in_full({"why-oom", log, "--case", cases});
  CHECK(twice.exit_code == 2);
  CHECK(contains(twice.err, "case.jsonl:2: found a second case"));
  const ProgramRun absent = run_in_full({"why-oom", log, "--case", cases, "--case-id", "b"});
  CHECK(absent.exit_code == 2);
  CHECK(contains(absent.err, "found no case with the id 'b'"));
}

// Two runs of a model of 14 layers that died on an H100 of 80 GB: how full the GPU was tells rows
// of one size apart. The first is in Adam's step, past gradients and moments of as many bytes; the
// second has its logits in fp32 and asks for their log-softmax.
TEST_CASE("how much was allocated tells which of several rows of one size was asked for") {
  const std::string model =
      R"({"schema": 1, "id": "a", "model": {"model_type": "llama", "hidden_size": 4096,)"
      R"( "intermediate_size": 12288, "num_hidden_layers": 14, "num_attention_heads": 32,)"
      R"( "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": false},)"
      R"( "cluster": "1x1-h100", )";
  struct Death {
    std::string run, tried, allocated, row;
  };
  for (const Death& death : std::vector<Death>{
           {R"("framework": "megatron-core-local", "training": {"sequence_length": 4096,)"
            R"( "micro_batch": 1, "num_microbatches": 2}, "plan": {"zero": 1}})",
            "384.00 MiB", "75.91 GiB", "optimizer.step_temporary, a weight of 24,576 x 4,096"},
           {R"("framework": "torchtitan", "training": {"sequence_length": 2048, "micro_batch": 4,)"
            R"( "num_microbatches": 2}, "plan": {"recompute": {"granularity": "full"}},)"
            R"( "options": {"reshard_after_forward": "never"}})",
            "4.64 GiB", "73.95 GiB", "head.loss.log_softmax"}}) {
    CAPTURE(death.row);
    check_first_row("CUDA out of memory. Tried to allocate " + death.tried +
                        ". GPU 0 has a total capacity of 79.18 GiB. Of the allocated memory " +
                        death.allocated + " is allocated by PyTorch\n",
                    model + death.run, death.row);
  }
}

// Runs that died on an H200 under a limit (torch.cuda.set_per_process_memory_fraction): while
// Megatron-core copies weights to fp32; in the first microbatch of torchtitan, before there are
// gradients; in the Trainer's second step, where the traceback tells backward from forward.
TEST_CASE("what is not there yet and what the traceback is doing tell rows of one size apart") {
  const std::string small =
      R"({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,)"
      R"( "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4,)"
      R"( "vocab_size": 32000, "tie_word_embeddings": false})";
  const std::string tied =
      R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,)"
      R"( "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,)"
      R"( "head_dim": 128, "vocab_size": 65536, "tie_word_embeddings": true})";
  const std::string reentrant =
      R"("framework": "transformers", "training": {"sequence_length": 1024, "micro_batch": 4,)"
      R"( "num_microbatches": 2}, "plan": {"recompute": {"granularity": "full"}}, "options":)"
      R"( {"reentrant_checkpoint": true})";
  const std::string traceback = "Traceback (most recent call last):\n";
  struct Death {
    std::string model, run, above, tried, allocated, row;
  };
  for (const Death& death : std::vector<Death>{
           {small,
            R"("framework": "megatron", "training": {"sequence_length": 2048, "micro_batch": 2,)"
            R"( "num_microbatches": 2}, "plan": {"zero": 1, "recompute": {"granularity": "full",)"
            R"( "method": "block", "num_layers": 6}}, "options": {"attention_backend": "local",)"
            R"( "fused_optimizer": false, "cross_entropy": "native_fused",)"
            R"( "gradient_accumulation_fusion": false})",
            "", "44.00 MiB", "5.89 GiB", "optimizer.dense.master, a weight of 2,048 x 5,632"},
           {R"("qwen3-0.6b")",
            R"("framework": "torchtitan", "training": {"sequence_length": 2048, "micro_batch": 1,)"
            R"( "num_microbatches": 2}, "plan": {"recompute": {"granularity": "selective",)"
            R"( "policy": "every_second_matmul"}})",
            "", "1.16 GiB", "5.16 GiB", "head.loss.fp32_logits"},
           {tied, reentrant,
            " 17%|#7  | 1/6 [00:02<00:14,  2.92s/it]\n" + traceback +
                "  File \"/torch/autograd/graph.py\", line 869, in _engine_run_backward\n",
            "1024.00 MiB", "4.00 GiB", "head.logits_gradients"},
           {tied, reentrant,
            " 17%|#7  | 1/6 [00:02<00:14,  2.92s/it]\n" + traceback +
                "  File \"/torch/nn/functional.py\", line 3504, in cross_entropy\n",
            "1024.00 MiB", "4.00 GiB", "head.logits"}}) {
    CAPTURE(death.row);
    check_first_row(death.above + "CUDA out of memory. Tried to allocate " + death.tried +
                        ". GPU 0 has a total capacity of 139.80 GiB. 6.19 GiB allowed; Of the "
                        "allocated memory " +
                        death.allocated + " is allocated by PyTorch\n",
                    R"({"schema": 1, "id": "a", "cluster": "1x1-h200", "model": )" + death.model +
                        ", " + death.run + "}",
                    death.row);
  }
}

TEST_CASE("every message is held against the capacity of its own GPU") {
  const std::string small =
      "[rank0]: RuntimeError: CUDA out of memory. Tried to allocate 1.75 GiB (GPU 0; 10.76 GiB "
      "total capacity; 9.71 GiB already allocated; 17.44 MiB free; 9.83 GiB reserved in total by "
      "PyTorch)\n";
  const std::string large = message("[rank1]: ", "1.75 GiB", "1", "133.21 GiB");
  const ProgramRun both = why_oom(small + large, {});
  CHECK(contains(both.out, "of 10.76 GiB"));
  CHECK(contains(both.out, "of 139.80 GiB"));
  CHECK(contains(both.out, "the log's GPU has 10.76 GiB, those of the cluster asked for "));
  const JsonValue answer = json_of(why_oom(small + large, {"--format", "json"}));
  const std::vector<JsonValue>& failures = at(answer, "failures").items;
  REQUIRE(failures.size() == 2);
  CHECK(at(failures[0], "capacity_bytes").integer < 11 * kGiB);
  CHECK(at(failures[1], "capacity_bytes").integer > 139 * kGiB);
  CHECK(at(answer, "capacity").integer == at(answer, "cluster_capacity").integer);
  // One that was asked for is every GPU's.
  const JsonValue asked =
      json_of(why_oom(small + large, {"--gpu-memory", "80GiB", "--format", "json"}));
  for (const JsonValue& failure : at(asked, "failures").items) {
    CHECK(at(failure, "capacity_bytes").integer == 80 * kGiB);
  }
}

}  // namespace shardplan
