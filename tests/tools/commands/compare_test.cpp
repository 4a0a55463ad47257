#include <doctest/doctest.h>

#include "tests/tools/run_program.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

ProgramRun compare(const Words& more, const std::string& sequence = "2048") {
  Words words = {"compare",           "--model", "llama2-7b",      "--cluster", "1x8-h100",
                 "--sequence-length", sequence,  "--global-batch", "16"};
  words.insert(words.end(), more.begin(), more.end());
  return run_in_full(words);
}

}  // namespace

// Rows are those of the peak: at 2048 tokens that is the gather of parameters, when no activation
// is alive, at 8192 tokens the loss.
TEST_CASE("compare names the field that two versions of a profile differ in, and its rows") {
  const Words versions = {"--framework", "nanotron",  "--tp",
                          "2",           "--against", "framework=nanotron@v0.4",
                          "--format",    "csv"};
  for (const std::string sequence : {"2048", "8192"}) {
    CAPTURE(sequence);
    const ProgramRun run = compare(versions, sequence);
    CHECK(run.exit_code == 0);
    CHECK(run.out.find("profile,version,2411b022,v0.4,") != std::string::npos);
    CHECK(run.out.find("profile,recompute_allgather,true,false,") != std::string::npos);
    CHECK(run.out.find("profile,fused_optimizer") == std::string::npos);
    const bool at_loss = sequence == "8192";
    CHECK((run.out.find("row,layer.dense.ffn.norm_output,") != std::string::npos) == at_loss);
    const std::string buffers = at_loss ? "134217728" : "33554432";  // two of 2 * 4096 * tokens
    CHECK(run.out.find("row,gather_buffers," + buffers + ",0,-" + buffers) != std::string::npos);
  }
}

TEST_CASE("compare of two plans lists the plan's fields and what they change") {
  const ProgramRun run = compare({"--tp", "2", "--against", "tp=4", "--format", "json"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find(R"({"kind":"plan","name":"tp","left":"2","right":"4","delta":null})") !=
        std::string::npos);
  CHECK(run.out.find(R"("name":"allocated")") != std::string::npos);
}

TEST_CASE("what --against changes takes the place of what --set says of it") {
  const ProgramRun run = compare({"--set", "swiglu=unfused", "--set", "tp=4", "--against",
                                  "swiglu=fused", "--against", "tp=2", "--format", "csv"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("profile,swiglu,unfused,fused,") != std::string::npos);
  CHECK(run.out.find("plan,tp,4,2,") != std::string::npos);
}

TEST_CASE("compare of two jobs lists what is different in them, their bytes and their time") {
  const ProgramRun batch =
      compare({"--tp", "2", "--against", "global_batch=32", "--format", "csv"});
  CHECK(batch.exit_code == 0);
  CHECK(batch.out.find("job,global_batch,16,32,16\n") != std::string::npos);
  CHECK(batch.out.find("\ntime,step_time_s,") != std::string::npos);
  CHECK(batch.out.find("\ntime,tokens_per_s_per_gpu,") != std::string::npos);
  CHECK(batch.out.find("\npart of step,compute_s,") != std::string::npos);
  CHECK(batch.out.find("part of step,bubble_s") == std::string::npos);  // none on either side
  const ProgramRun others =
      compare({"--against", "model=llama3-8b", "--against", "cluster=1x8-h200", "--against",
               "sequence_length=4096", "--format", "csv"});
  for (const std::string row :
       {"job,model,llama2-7b,llama3-8b,", "job,cluster,1x8-h100,1x8-h200,",
        "job,sequence_length,2048,4096,2048", "job,parameters,6738415616,8030261248,1291845632"}) {
    CAPTURE(row);
    CHECK(others.out.find(row) != std::string::npos);
  }
}

TEST_CASE("plans that differ in time alone differ") {
  const ProgramRun run = run_in_full({"compare", "--model", "llama2-7b", "--cluster", "2x8-h100",
                                      "--sequence-length", "2048", "--global-batch", "16", "--tp",
                                      "2", "--pp", "2", "--against", "rank_order=dp-pp-cp-tp"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("\ntime          step_time_s") != std::string::npos);
  CHECK(run.out.find("\npart of step  exposed_pp_s") != std::string::npos);
}

TEST_CASE("--against refuses options that say how to read or to answer") {
  for (const std::string word : {"format=csv", "out=/nowhere", "data=/nowhere", "color=always",
                                 "against=tp=2", "strict=true", "help=1", "set=tp=2"}) {
    CAPTURE(word);
    const ProgramRun run = compare({"--tp", "2", "--against", word});
    CHECK(run.exit_code == 2);
    CHECK(run.err == "shardplan: error: --against: found '" + word +
                         "', expected an option of the job or the plan, or a switch of the "
                         "framework\n");
  }
}

TEST_CASE("of global batch and microbatches --against takes the place of the other one") {
  const ProgramRun run =
      compare({"--tp", "2", "--against", "num-microbatches=8", "--format", "csv"});
  CHECK(run.exit_code == 0);
  CHECK(run.out.find("job,global_batch,16,32,16\n") != std::string::npos);
  const ProgramRun both =
      compare({"--against", "num-microbatches=8", "--against", "global-batch=32"});
  CHECK(both.exit_code == 2);
  CHECK(both.err.find("found both") != std::string::npos);
}

TEST_CASE("compare of a plan with itself finds nothing, and mistakes are one line") {
  CHECK(compare({"--tp", "2", "--against", "tp=2"}).out.find("nothing differs") !=
        std::string::npos);
  const ProgramRun no_value = compare({"--against", "tp"});
  CHECK(no_value.exit_code == 2);
  CHECK(no_value.err == "shardplan: error: --against: found 'tp', expected KEY=VALUE\n");
  CHECK(compare({"--against", "no_such=1"}).exit_code == 2);
}

TEST_CASE("the other side may be another GPU, or a cluster in place of a GPU") {
  const ProgramRun run =
      run_shardplan({"compare", "llama3-8b", "--gpu", "h100", "--sequence-length", "4k",
                     "--global-batch", "64", "--tp", "4", "--against", "cluster=1x8-h200"});
  CHECK(run.exit_code <= 1);
  CHECK(run.out.find("1x8-h200") != std::string::npos);
}

}  // namespace shardplan
