// SPDX-License-Identifier: Apache-2.0
// The names of all environment variables that this project reads or writes. A
// check rejects them anywhere else in the sources.
#pragma once

namespace accelerate::variables {

// Settings of a run, for the launcher, which passes them to workers.
inline constexpr const char* kUseCpu = "ACCELERATE_USE_CPU";
inline constexpr const char* kMixedPrecision = "ACCELERATE_MIXED_PRECISION";
inline constexpr const char* kGradientAccumulationSteps =
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
inline constexpr const char* kFast = "ACCELERATE_FAST";
inline constexpr const char* kDebugMode = "ACCELERATE_DEBUG_MODE";
inline constexpr const char* kCpuAffinity = "ACCELERATE_CPU_AFFINITY";
inline constexpr const char* kHangSeconds = "ACCELERATE_HANG_SECONDS";
inline constexpr const char* kStepSummary = "ACCELERATE_STEP_SUMMARY";

// Set by the launcher for its workers only.
inline constexpr const char* kMainPid = "ACCELERATE_MAIN_PID";
inline constexpr const char* kRunReport = "ACCELERATE_RUN_REPORT";

// Set by `accelerate verify` for its workers: the folder of the records, the
// folder of this run in it, the number of updates to record, and in the
// reference the number of ranks whose samples each batch contains.
inline constexpr const char* kVerifyFolder = "ACCELERATE_VERIFY_FOLDER";
inline constexpr const char* kVerifyRun = "ACCELERATE_VERIFY_RUN";
inline constexpr const char* kVerifySteps = "ACCELERATE_VERIFY_STEPS";
inline constexpr const char* kVerifyMergedRanks =
    "ACCELERATE_VERIFY_MERGED_RANKS";

// Sharding in the Python package, under Hugging Face Accelerate's names.
inline constexpr const char* kUseParallelismConfig =
    "ACCELERATE_USE_PARALLELISM_CONFIG";
inline constexpr const char* kParallelismReplicate =
    "PARALLELISM_CONFIG_DP_REPLICATE_SIZE";
inline constexpr const char* kParallelismShard =
    "PARALLELISM_CONFIG_DP_SHARD_SIZE";
inline constexpr const char* kParallelismTensor = "PARALLELISM_CONFIG_TP_SIZE";
inline constexpr const char* kUseFsdp = "ACCELERATE_USE_FSDP";
inline constexpr const char* kFsdpVersion = "FSDP_VERSION";
inline constexpr const char* kFsdpShardingStrategy = "FSDP_SHARDING_STRATEGY";
inline constexpr const char* kFsdpReshardAfterForward =
    "FSDP_RESHARD_AFTER_FORWARD";
inline constexpr const char* kFsdpAutoWrapPolicy = "FSDP_AUTO_WRAP_POLICY";
inline constexpr const char* kFsdpTransformerClasses =
    "FSDP_TRANSFORMER_CLS_TO_WRAP";
inline constexpr const char* kFsdpMinNumParams = "FSDP_MIN_NUM_PARAMS";
inline constexpr const char* kFsdpStateDictType = "FSDP_STATE_DICT_TYPE";
inline constexpr const char* kFsdpRamEfficientLoading =
    "FSDP_CPU_RAM_EFFICIENT_LOADING";
inline constexpr const char* kFsdpActivationCheckpointing =
    "FSDP_ACTIVATION_CHECKPOINTING";
inline constexpr const char* kFsdpActivationOffload =
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD";
inline constexpr const char* kFsdpOffloadParams = "FSDP_OFFLOAD_PARAMS";
inline constexpr const char* kFsdpBackwardPrefetch = "FSDP_BACKWARD_PREFETCH";
inline constexpr const char* kFsdpForwardPrefetch = "FSDP_FORWARD_PREFETCH";
inline constexpr const char* kFsdpUseOrigParams = "FSDP_USE_ORIG_PARAMS";
inline constexpr const char* kFsdpSyncModuleStates = "FSDP_SYNC_MODULE_STATES";
inline constexpr const char* kFsdpIgnoredModules = "FSDP_IGNORED_MODULES";
inline constexpr const char* kUseDeepSpeed = "ACCELERATE_USE_DEEPSPEED";
inline constexpr const char* kDeepSpeedConfigFile =
    "ACCELERATE_DEEPSPEED_CONFIG_FILE";
inline constexpr const char* kZeroStage = "ACCELERATE_DEEPSPEED_ZERO_STAGE";
inline constexpr const char* kGradientClipping = "ACCELERATE_GRADIENT_CLIPPING";
inline constexpr const char* kOffloadOptimizerDevice =
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE";
inline constexpr const char* kOffloadParamDevice =
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE";
inline constexpr const char* kOffloadOptimizerNvmePath =
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH";
inline constexpr const char* kOffloadParamNvmePath =
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH";
inline constexpr const char* kZero3Init = "ACCELERATE_DEEPSPEED_ZERO3_INIT";
inline constexpr const char* kZero3Save16BitModel =
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL";
inline constexpr const char* kMoeClasses =
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES";

// Compilation in the Python package, under Hugging Face Accelerate's names.
inline constexpr const char* kDynamoBackend = "ACCELERATE_DYNAMO_BACKEND";
inline constexpr const char* kDynamoMode = "ACCELERATE_DYNAMO_MODE";
inline constexpr const char* kDynamoFullgraph =
    "ACCELERATE_DYNAMO_USE_FULLGRAPH";
inline constexpr const char* kDynamoDynamic = "ACCELERATE_DYNAMO_USE_DYNAMIC";
inline constexpr const char* kDynamoRegional =
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION";

// Settings for the launcher only.
inline constexpr const char* kConfigFile = "ACCELERATE_CONFIG_FILE";
inline constexpr const char* kNumProcesses = "ACCELERATE_NUM_PROCESSES";
inline constexpr const char* kNumMachines = "ACCELERATE_NUM_MACHINES";
inline constexpr const char* kMachineRank = "ACCELERATE_MACHINE_RANK";
inline constexpr const char* kHosts = "ACCELERATE_HOSTS";
inline constexpr const char* kHostfile = "ACCELERATE_HOSTFILE";
inline constexpr const char* kMpirunHostfile = "ACCELERATE_MPIRUN_HOSTFILE";
inline constexpr const char* kJoinTimeout = "ACCELERATE_JOIN_TIMEOUT";
inline constexpr const char* kMaxRestarts = "ACCELERATE_MAX_RESTARTS";
inline constexpr const char* kLogDir = "ACCELERATE_LOG_DIR";
inline constexpr const char* kTee = "ACCELERATE_TEE";
inline constexpr const char* kHeartbeatSeconds = "ACCELERATE_HEARTBEAT_SECONDS";
inline constexpr const char* kGraceSeconds = "ACCELERATE_GRACE_SECONDS";
inline constexpr const char* kContain = "ACCELERATE_CONTAIN";
inline constexpr const char* kExport = "ACCELERATE_EXPORT";
inline constexpr const char* kCheck = "ACCELERATE_CHECK";
inline constexpr const char* kLogMaxMb = "ACCELERATE_LOG_MAX_MB";
inline constexpr const char* kLocalRanksFilter =
    "ACCELERATE_LOCAL_RANKS_FILTER";
inline constexpr const char* kTimestamps = "ACCELERATE_TIMESTAMPS";
inline constexpr const char* kBindMemory = "ACCELERATE_BIND_MEMORY";
inline constexpr const char* kQuiet = "ACCELERATE_QUIET";
inline constexpr const char* kSshCommand = "ACCELERATE_SSH_COMMAND";
/// A secret: never shown or passed to workers.
inline constexpr const char* kJobToken = "ACCELERATE_JOB_TOKEN";
inline constexpr const char* kJobTokenFile = "ACCELERATE_JOB_TOKEN_FILE";

// Folders and terminals, as used by other programs.
inline constexpr const char* kPath = "PATH";
inline constexpr const char* kHome = "HOME";
inline constexpr const char* kHuggingFaceHome = "HF_HOME";
inline constexpr const char* kHubCache = "HF_HUB_CACHE";
inline constexpr const char* kOldHubCache = "HUGGINGFACE_HUB_CACHE";
inline constexpr const char* kCacheHome = "XDG_CACHE_HOME";
inline constexpr const char* kRuntimeDir = "XDG_RUNTIME_DIR";
inline constexpr const char* kNoColor = "NO_COLOR";
inline constexpr const char* kDisplay = "DISPLAY";
inline constexpr const char* kWaylandDisplay = "WAYLAND_DISPLAY";

// Output settings.
inline constexpr const char* kLogLevel = "ACCELERATE_LOG_LEVEL";

// MLflow's own variables, for the MLflow tracker.
inline constexpr const char* kMlflowUri = "MLFLOW_TRACKING_URI";
inline constexpr const char* kMlflowExperiment = "MLFLOW_EXPERIMENT_NAME";
inline constexpr const char* kMlflowRunId = "MLFLOW_RUN_ID";
inline constexpr const char* kMlflowUser = "MLFLOW_TRACKING_USERNAME";
/// Secrets: never shown.
inline constexpr const char* kMlflowPassword = "MLFLOW_TRACKING_PASSWORD";
inline constexpr const char* kMlflowToken = "MLFLOW_TRACKING_TOKEN";

// Variables of libraries that workers use.
inline constexpr const char* kOmpNumThreads = "OMP_NUM_THREADS";
/// A variable of torch's host memory allocator on arm64, in milliseconds.
inline constexpr const char* kPurgeDelay = "MIMALLOC_PURGE_DELAY";
inline constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr const char* kGlooInterface = "GLOO_SOCKET_IFNAME";
inline constexpr const char* kNcclInterface = "NCCL_SOCKET_IFNAME";
inline constexpr const char* kPythonFaultHandler = "PYTHONFAULTHANDLER";
inline constexpr const char* kNcclAsyncErrors =
    "TORCH_NCCL_ASYNC_ERROR_HANDLING";

// torchrun's variables, which our launcher also sets.
inline constexpr const char* kRank = "RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kGroupRank = "GROUP_RANK";
inline constexpr const char* kGroupWorldSize = "GROUP_WORLD_SIZE";
inline constexpr const char* kRoleName = "ROLE_NAME";
inline constexpr const char* kRoleRank = "ROLE_RANK";
inline constexpr const char* kRoleWorldSize = "ROLE_WORLD_SIZE";
inline constexpr const char* kMasterAddress = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";
inline constexpr const char* kRestartCount = "TORCHELASTIC_RESTART_COUNT";
inline constexpr const char* kMostRestarts = "TORCHELASTIC_MAX_RESTARTS";
inline constexpr const char* kRunId = "TORCHELASTIC_RUN_ID";
inline constexpr const char* kErrorFile = "TORCHELASTIC_ERROR_FILE";
inline constexpr const char* kUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE";

// Kubernetes' training operator: torchrun's options in variables.
inline constexpr const char* kPetPrefix = "PET_";
inline constexpr const char* kPetNumNodes = "PET_NNODES";
inline constexpr const char* kPetNodeRank = "PET_NODE_RANK";

// MPI.
inline constexpr const char* kOpenMpiRank = "OMPI_COMM_WORLD_RANK";
inline constexpr const char* kOpenMpiSize = "OMPI_COMM_WORLD_SIZE";
inline constexpr const char* kOpenMpiLocalRank = "OMPI_COMM_WORLD_LOCAL_RANK";
inline constexpr const char* kOpenMpiLocalSize = "OMPI_COMM_WORLD_LOCAL_SIZE";
inline constexpr const char* kOpenMpiJob = "OMPI_MCA_ess_base_jobid";
inline constexpr const char* kMvapichRank = "MV2_COMM_WORLD_RANK";
inline constexpr const char* kMvapichSize = "MV2_COMM_WORLD_SIZE";
inline constexpr const char* kMvapichLocalRank = "MV2_COMM_WORLD_LOCAL_RANK";
inline constexpr const char* kMvapichLocalSize = "MV2_COMM_WORLD_LOCAL_SIZE";
inline constexpr const char* kMvapichJob = "MPIRUN_ID";
inline constexpr const char* kPmiRank = "PMI_RANK";
inline constexpr const char* kPmiSize = "PMI_SIZE";
inline constexpr const char* kPmiLocalRank = "MPI_LOCALRANKID";
inline constexpr const char* kPmiLocalSize = "MPI_LOCALNRANKS";
inline constexpr const char* kPmiJob = "PMI_JOBID";
inline constexpr const char* kPmixJob = "PMIX_NAMESPACE";

// Slurm.
inline constexpr const char* kSlurmRank = "SLURM_PROCID";
inline constexpr const char* kSlurmLocalRank = "SLURM_LOCALID";
inline constexpr const char* kSlurmNode = "SLURM_NODEID";
inline constexpr const char* kSlurmTasks = "SLURM_NTASKS";
inline constexpr const char* kSlurmStepTasks = "SLURM_STEP_NUM_TASKS";
inline constexpr const char* kSlurmTasksPerNode = "SLURM_TASKS_PER_NODE";
inline constexpr const char* kSlurmStepTasksPerNode =
    "SLURM_STEP_TASKS_PER_NODE";
inline constexpr const char* kSlurmNodes = "SLURM_NODELIST";
inline constexpr const char* kSlurmJobNodes = "SLURM_JOB_NODELIST";
inline constexpr const char* kSlurmStepNodes = "SLURM_STEP_NODELIST";
inline constexpr const char* kSlurmJob = "SLURM_JOB_ID";
inline constexpr const char* kSlurmRestarts = "SLURM_RESTART_COUNT";
inline constexpr const char* kSlurmStep = "SLURM_STEP_ID";
/// "BATCH" in the script of a batch job.
inline constexpr const char* kBatchEnvironment = "ENVIRONMENT";

} // namespace accelerate::variables
