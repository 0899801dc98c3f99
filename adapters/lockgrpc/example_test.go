package lockgrpc_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/golocker/locker"
	"github.com/golocker/locker/adapters/lockgrpc"
	"github.com/golocker/locker/memory"
)

// checker stands for a service of the program.
type checker struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (checker) Check(
	ctx context.Context, req *grpc_health_v1.HealthCheckRequest,
) (*grpc_health_v1.HealthCheckResponse, error) {
	lease, _ := locker.LeaseFrom(ctx)
	fmt.Printf("%s has a token: %t\n", lease.Key(), lease.Fence() > 0)
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

func Example() {
	l := memory.New() // or config.Open with a URL, which all instances share
	defer l.Close()
	byService := func(_ context.Context, _ string, req any) string {
		if r, ok := req.(*grpc_health_v1.HealthCheckRequest); ok {
			return "services:" + r.GetService()
		}
		return ""
	}
	lock := lockgrpc.UnaryServerInterceptor(l, byService, lockgrpc.Wait(time.Second/10))
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(lock))
	grpc_health_v1.RegisterHealthServer(s, checker{})
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go s.Serve(at)
	defer s.Stop()

	conn, err := grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	check := func() {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(),
			&grpc_health_v1.HealthCheckRequest{Service: "shop"})
		fmt.Println(status.Code(err))
	}
	check()
	if _, err := l.TryLock(context.Background(), "services:shop"); err != nil { // by another call
		panic(err)
	}
	check()
	// Output:
	// services:shop has a token: true
	// OK
	// Unavailable
}
