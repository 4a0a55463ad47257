#include "estimator/fujii2024.h"
