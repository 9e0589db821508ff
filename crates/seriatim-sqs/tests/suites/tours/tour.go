// What aws-sdk-go does with the server at the address given. Version 1.44.133 speaks Query.
package main

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/awserr"
	"github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/session"
	"github.com/aws/aws-sdk-go/service/sqs"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must(holds bool, found ...interface{}) {
	if !holds {
		panic(fmt.Sprint(found...))
	}
}

func refused(code string, err error) {
	refusal, ok := err.(awserr.Error)
	must(ok && refusal.Code() == code, code, " was expected, not ", err)
}

func body(n int) *string { return aws.String(fmt.Sprintf("%d é <&>\r\n", n)) }

func main() {
	client := sqs.New(session.Must(session.NewSession(&aws.Config{
		Endpoint:    aws.String(os.Args[1]),
		Region:      aws.String("us-east-1"),
		Credentials: credentials.NewStaticCredentials("x", "y", ""),
	})))
	name := aws.String("tour-go.fifo")
	_, err := client.GetQueueUrl(&sqs.GetQueueUrlInput{QueueName: name})
	refused(sqs.ErrCodeQueueDoesNotExist, err)
	made, err := client.CreateQueue(&sqs.CreateQueueInput{
		QueueName:  name,
		Attributes: map[string]*string{"FifoQueue": aws.String("true")},
	})
	check(err)
	url := made.QueueUrl

	// The SDK compares the sums of bodies and attributes itself.
	send := func(n int, attributes map[string]*sqs.MessageAttributeValue) {
		_, err := client.SendMessage(&sqs.SendMessageInput{
			QueueUrl:               url,
			MessageBody:            body(n),
			MessageGroupId:         aws.String("g"),
			MessageDeduplicationId: aws.String(fmt.Sprint(n)),
			MessageAttributes:      attributes,
		})
		check(err)
	}
	receive := func(most int64) []*sqs.Message {
		got, err := client.ReceiveMessage(&sqs.ReceiveMessageInput{
			QueueUrl:              url,
			MaxNumberOfMessages:   aws.Int64(most),
			WaitTimeSeconds:       aws.Int64(10),
			AttributeNames:        aws.StringSlice([]string{"All"}),
			MessageAttributeNames: aws.StringSlice([]string{"All"}),
		})
		check(err)
		return got.Messages
	}
	send(0, map[string]*sqs.MessageAttributeValue{
		"text":  {DataType: aws.String("String"), StringValue: aws.String("é <&>")},
		"bytes": {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
	})
	var entries []*sqs.SendMessageBatchRequestEntry
	for n := 1; n < 4; n++ {
		entries = append(entries, &sqs.SendMessageBatchRequestEntry{
			Id:                     aws.String(fmt.Sprint(n)),
			MessageBody:            body(n),
			MessageGroupId:         aws.String("g"),
			MessageDeduplicationId: aws.String(fmt.Sprint(n)),
		})
	}
	sent, err := client.SendMessageBatch(&sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries})
	check(err)
	must(len(sent.Successful) == 3, sent)

	first := receive(1)
	must(len(first) == 1 && *first[0].Attributes["MessageGroupId"] == "g", first)
	attributes := first[0].MessageAttributes
	must(*attributes["text"].StringValue == "é <&>", attributes)
	must(bytes.Equal(attributes["bytes"].BinaryValue, []byte{0, 255}), attributes)
	_, err = client.ChangeMessageVisibility(&sqs.ChangeMessageVisibilityInput{
		QueueUrl:          url,
		ReceiptHandle:     first[0].ReceiptHandle,
		VisibilityTimeout: aws.Int64(0),
	})
	check(err)

	for next := 0; next < 4; {
		got := receive(10)
		var done []*sqs.DeleteMessageBatchRequestEntry
		for _, message := range got {
			must(*message.Body == *body(next), next, message)
			next++
			done = append(done, &sqs.DeleteMessageBatchRequestEntry{
				Id:            aws.String(fmt.Sprint(next)),
				ReceiptHandle: message.ReceiptHandle,
			})
		}
		deleted, err := client.DeleteMessageBatch(&sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: done})
		check(err)
		must(len(deleted.Successful) == len(got), deleted)
	}

	// A message that is sent while a receive waits ends the wait.
	begin, waiting := time.Now(), make(chan []*sqs.Message)
	go func() { waiting <- receive(10) }()
	send(4, nil)
	got := <-waiting
	must(len(got) == 1 && *got[0].Body == *body(4), got)
	must(time.Since(begin) < 9*time.Second, "the receive waited to its end")
	_, err = client.DeleteMessage(&sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: aws.String("forged")})
	refused(sqs.ErrCodeReceiptHandleIsInvalid, err)
	_, err = client.DeleteQueue(&sqs.DeleteQueueInput{QueueUrl: url})
	check(err)
	fmt.Println("all well")
}
