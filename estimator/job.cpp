#include "estimator/job.h"
